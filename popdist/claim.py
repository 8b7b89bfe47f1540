"""Keeps what an instance starts from taking the instance's place in collectives."""

import os
from collections.abc import MutableMapping

from popdist.environment import JOINED
from popdist.errors import GroupUnusableError


class Claim:
    """A mark in the environment, which processes inherit, that somebody has joined.

    What an instance starts has the same variables. It would take the instance's place
    in a group that this has yet to join, or wait in vain where it has.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._mark: str | None = None

    def stake(self, meeting: str) -> None:
        """Say to all that this process starts that it has joined that meeting."""
        self._mark = f"{os.getpid()} {meeting}"
        self._environ[JOINED] = self._mark

    def drop(self) -> None:
        """Let what this process starts from now on join in its place."""
        if self._mark is not None and self._environ.get(JOINED) == self._mark:
            del self._environ[JOINED]

    def check(self, meeting: str, rank: int) -> None:
        """Raise GroupUnusableError if another process has joined as this instance."""
        pid, _, theirs = self._environ.get(JOINED, "").partition(" ")
        if theirs == meeting and pid != str(os.getpid()):
            raise GroupUnusableError(
                f"This process was started from instance {rank} (process {pid}), which "
                "has joined its groups and takes part in collectives itself. Make the "
                "calls in that process, or start a job of its own with poprun."
            )
