"""What poprun shows while a job waits for its IPUs.

On a terminal one line that is drawn again and again, elsewhere a line for each change.
"""

import os
import time
from collections.abc import Mapping

from poprun.log import Log, printable
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
        if self._is_terminal:
            seconds = int(time.monotonic() - self._began)
            clock = f"{seconds // 60}:{seconds % 60:02}"
            text = printable(f"poprun: waiting for IPUs ({clock}): {why}")
            columns = terminal.columns_of(2) or 80
            if terminal.is_foreground(2):
                _is_drawn = True
                write_text(2, f"{_ERASE}{text[: columns - 1]}")
        elif why != self._last:
            self._log.say(f"waiting for IPUs: {why or 'they are in use.'}")
        self._last = why


def erase() -> None:
    """Erase the line, if it is drawn; a signal handler calls this, too."""
    global _is_drawn
    if _is_drawn:
        _is_drawn = False
        os.write(2, _ERASE.encode())
