"""The two errors of a service: it cannot work, or it is not ready yet."""

from __future__ import annotations


class StackError(Exception):
    """One line for the user: the problem and the remedy."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class NotReady(Exception):
    """The service runs but does not answer properly yet; a later check may succeed."""
