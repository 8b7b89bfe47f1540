"""What poprun shows while a job waits for its IPUs.

A line for each change of what it waits for. On a terminal one more below it, which is
drawn again and again, says how long it has waited.
"""

import os
import time
from collections.abc import Mapping

from poprun.log import Log
from poprun.stdio import terminal
from poprun.stdio.writer import write_text

_ERASE = "\r\x1b[K"
_is_drawn = False


class WaitingLine:
    """Shows for whom one job waits."""

    def __init__(self, environ: Mapping[str, str], log: Log) -> None:
        self._log = log
        self._is_terminal = terminal.has_status_line(environ)
        self._began = time.monotonic()
        self._last = ""

    def show(self, why: str) -> None:
        global _is_drawn
        if why != self._last:
            erase()
            self._log.say(f"waiting for IPUs: {why}")
            self._last = why
        if self._is_terminal and terminal.is_foreground(2):
            seconds = int(time.monotonic() - self._began)
            _is_drawn = True
            clock = f"{seconds // 60}:{seconds % 60:02}"
            write_text(2, f"{_ERASE}poprun: waiting for IPUs ({clock})")


def erase() -> None:
    """Erase the line, if it is drawn; a signal handler calls this, too."""
    global _is_drawn
    if _is_drawn:
        _is_drawn = False
        os.write(2, _ERASE.encode())
