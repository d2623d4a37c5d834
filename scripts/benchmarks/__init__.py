"""The benchmarks behind `make bench`: each compares ours with a reference in interleaved rounds.

A loaded machine moves every absolute number; the ratio of two things measured in turns moves much
less. So each figure is a median with its best round, and the last column is the ratio.
"""
