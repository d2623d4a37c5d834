"""The benchmarks behind `make bench`: each compares ours with a reference in interleaved rounds.

Other load on the machine changes every absolute number, but much less the ratio of two variants that
take turns. So each figure has the median and the best round, and the ratio to its reference.
"""
