"""poprun's messages on stderr: log lines in PopRun's format, and sentences."""

import os
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

from poprun.color import message
from poprun.words import printable

INFO, DEBUG = 1, 2


@dataclass(frozen=True, slots=True)
class Log:
    """Write log lines as -v and -vv ask for, sentences and warnings, and errors.

    05:39:56.884 1825444 POPRUN [I] Waiting for mpirun (PID 1825998)
    """

    verbosity: int
    # Gets each line.
    emit: Callable[[str], object]
    _: KW_ONLY
    has_color: bool = False
    # Write errors only, and the sentences about them.
    is_quiet: bool = False

    def info(self, message: str) -> None:
        self._line(INFO, "I", message)

    def debug(self, message: str) -> None:
        self._line(DEBUG, "D", message)

    def warn(self, sentence: str) -> None:
        if self.is_quiet:
            return
        self.emit(message("warning", printable(sentence), has_color=self.has_color))

    def say(self, sentence: str, *, even_if_quiet: bool = False) -> None:
        if self.is_quiet and not even_if_quiet:
            return
        self.emit(f"poprun: {printable(sentence)}\n")

    def error(self, sentence: str) -> None:
        self.emit(message("error", printable(sentence), has_color=self.has_color))

    def held_back(self, lines: list[str]) -> "Log":
        """Return a log that adds lines to a list, for `write` to write later."""
        return replace(self, emit=lines.append)

    def write(self, lines: list[str]) -> None:
        """Write lines that a log has held back."""
        for line in lines:
            self.emit(line)

    def _line(self, level: int, letter: str, message: str) -> None:
        if self.verbosity < level:
            return
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        milliseconds = int(now * 1000) % 1000
        self.emit(
            f"{clock}.{milliseconds:03d} {os.getpid()} POPRUN [{letter}] "
            f"{printable(message)}\n"
        )
