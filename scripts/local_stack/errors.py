"""The two things a service can tell: it will not work, or it does not work yet."""

from __future__ import annotations


class StackError(Exception):
    """One line for the user: what is wrong and what to do about it."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class NotReady(Exception):
    """The service runs but does not answer properly yet; asking again may help."""
