"""Say what is wrong with a pipeline, what causes it, how long until events are lost, and what to do next.

    sources/  -> Sample      the state that the servers report at one moment (all I/O is here)
    history   -> Point       the numbers of earlier samples that rates and durations are computed from
    facts     -> Facts       differences, rates and ages, computed once
    forecast  -> SecondsLeft when the slot will be invalidated or the disk will be full
    rules/    -> Finding     one function per fault
    assess    -> Verdict     the finding that explains the others

Everything below `sources` is pure: no clock, no I/O, so every verdict has a unit test.
"""
