"""How long a member waits for the others while they meet, and its reports."""

import faulthandler
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from popdist.errors import CollectiveTimeoutError

# A longer wait is several waits: poll() counts milliseconds in an int.
_LONGEST = 1000.0


class Deadline:
    """The deadline for all waits of a meeting, with one report before it."""

    def __init__(
        self, who: str, where: str, *, timeout: float, stall: float, behind: bool
    ) -> None:
        # The leader knows who has not connected. The joiners wait a little longer, so
        # that it reports first.
        late = 1.25 if behind else 1.0
        self._who = who
        self._where = where
        self._begin = monotonic()
        self._stall = min(stall * late, stall + 1)
        self._timeout = min(timeout * late, timeout + 1)
        self.stalled = False

    def left(self) -> float:
        """Return the seconds until `check` reports or raises."""
        until = self._timeout if self.stalled else min(self._stall, self._timeout)
        return max(0.0, min(self._begin + until - monotonic(), _LONGEST))

    def check(self, missing: Callable[[], str | None], remark: str = "") -> None:
        """Report a stall, once, and give up at the deadline.

        Args:
            missing: Returns the names of the missing; None if they were reported.
            remark: A further sentence about the reason, beginning with a space.
        """
        waited = monotonic() - self._begin
        if waited >= self._timeout:
            raise CollectiveTimeoutError(
                f"{self._who} has waited {self._timeout:.4g} s for "
                f"{missing() or 'the others'} to join {self._where}. Look above for "
                "their last output. If they were only slow, raise POPDIST_TIMEOUT."
                f"{remark}"
            )
        if waited >= self._stall and not self.stalled:
            self.stalled = True
            if whom := missing():
                report(
                    f"popdist: {self._who.lower()} has waited {waited:.4g} s for "
                    f"{whom} to join {self._where}, and gives up after "
                    f"{self._timeout:.4g} s.{remark}"
                )


def report(message: str) -> None:
    """Print the reason of a long wait on stderr, with the Python stacks."""
    # A long wait must not fail because of a full disk, a closed pipe or a closed
    # stderr. One print, so that reports of several instances do not mix.
    with suppress(OSError, ValueError):
        print(f"{message}\n{_stacks()}", end="", file=sys.stderr, flush=True)


def _stacks() -> str:
    """Return the Python stacks of all threads with a label, if they can be had."""
    try:
        with open(os.memfd_create("stacks"), "w+", errors="replace") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            text = file.read()
    except OSError:  # no descriptor left, or memfd_create is forbidden
        return ""
    return f"popdist: its Python stacks (PID {os.getpid()}):\n{text.strip()}\n"
