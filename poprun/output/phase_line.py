"""The line on a terminal with the phase of poprun before a job starts.

It appears when a phase takes long, and a timer draws it: the code that waits, for a
host or an inventory, knows nothing of it. While the job runs, the router draws a line.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from poprun import early_signals
from poprun.output import terminal
from poprun.output.writer import write_text

FIRST_AFTER_S = 0.5
INTERVAL_S = 1.0
_ERASE = "\r\x1b[K"


class PhaseLine:
    """The line of one run, with the time since the first phase that it shows.

    Args:
        is_possible: Whether stderr is a terminal on which a line disturbs nothing.
        on_phase: Is told each phase, whether a line is possible or not.
    """

    def __init__(
        self, *, is_possible: bool, on_phase: Callable[[str], None] = lambda phase: None
    ) -> None:
        self._is_possible = is_possible
        self._on_phase = on_phase
        early_signals.call_before_message(self._erase)
        self._is_drawn = False
        self._phase = ""
        self._began = 0.0
        # The handler that the timer replaces; None without a timer. There is none where
        # the caller ignores SIGALRM: the instances inherit that.
        self._handler: Any = None

    def __enter__(self) -> "PhaseLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.hide()

    def show(self, phase: str) -> None:
        """Say what poprun does from now on; "" for nothing."""
        if phase == self._phase:
            return
        self._on_phase(phase)
        if not phase:
            self.hide()
            return
        handler = signal.getsignal(signal.SIGALRM)
        is_free = handler in (signal.SIG_DFL, early_signals.stop)
        # The caller's timer lasts beyond exec.
        has_alarm = signal.getitimer(signal.ITIMER_REAL)[0] > 0
        if self._is_possible and is_free and not has_alarm:
            self._handler, self._began = handler, time.monotonic()
            # The kernel interrupts what poprun waits in, and Python goes on with it.
            signal.signal(signal.SIGALRM, self._draw)
            signal.setitimer(signal.ITIMER_REAL, FIRST_AFTER_S, INTERVAL_S)
        self._phase = phase
        if self._is_drawn:
            self._draw()

    def hide(self) -> None:
        """Erase the line, and draw none until the next phase."""
        if self._handler is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
            self._handler = None
        self._phase = ""
        self._erase()

    def write(self, text: str) -> None:
        """Write lines to stderr; the line of the phase appears below them again."""
        self._erase()
        write_text(2, text)

    def _draw(self, *_: object) -> None:
        if not self._phase or not terminal.is_foreground(2):
            return
        seconds = int(time.monotonic() - self._began)
        text = f"poprun: {self._phase} ({terminal.clock(seconds)})"
        columns = terminal.own_size()[1]
        self._is_drawn = True
        _write(f"{_ERASE}{text[: columns - 1]}")

    def _erase(self) -> None:
        """Erase the line, if it is drawn; a signal handler calls this, too."""
        if self._is_drawn:
            self._is_drawn = False
            _write(_ERASE)


def _write(text: str) -> None:
    # The terminal may hang up, or be full and not wait. The job needs no line, and the
    # handler of a signal must not raise.
    with suppress(OSError):
        os.write(2, text.encode())
