"""How long to wait before the next attempt: exponential backoff with an upper limit and jitter."""

from __future__ import annotations


def delay(
    attempt: int,
    first: float,
    longest: float,
    *,
    factor: float = 2.0,
    jitter: float = 0.0,
    random: float = 0.5,
) -> float:
    """Return the seconds to wait after failed attempt number `attempt`, counted from 1.

    That is `first` after the first failure and `factor` times as long after each further one, at most
    `longest`, spread by `jitter` (see `spread`). Any number of attempts is allowed.
    """
    try:
        seconds = first * float(factor) ** (attempt - 1)
    except OverflowError:
        seconds = longest
    return spread(min(seconds, longest), jitter, random)


def spread(seconds: float, jitter: float, random: float) -> float:
    """Spread a delay evenly over `seconds` ± `jitter` (a share: 0.25 is 25 %).

    `random` is a random number in [0, 1); 0.5 returns the delay unchanged.
    """
    return seconds * (1 + jitter * (2 * random - 1))
