"""Say what is wrong with a pipeline, whose fault it is, how long until events are lost, and what to do next.

    sources/  -> Sample      what the servers say, taken at one moment (all I/O is here)
    history   -> Point       the few numbers of earlier samples that a rate or a "since when" needs
    facts     -> Facts       differences, rates and ages, computed once
    forecast  -> SecondsLeft when the slot would be invalidated or the disk be full
    rules/    -> Finding     one small function per thing that can be wrong
    assess    -> Verdict     the finding that explains the others

Everything below `sources` is pure: no clock, no I/O, so every verdict can be tested by hand.
"""
