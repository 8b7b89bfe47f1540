"""poprun's messages on stderr: log lines in PopRun's format, and sentences."""

import os
import time
from collections.abc import Callable

from poprun.color import CYAN, RED, YELLOW, paint
from poprun.words import printable

STYLES = {"error": RED, "warning": YELLOW, "hint": CYAN}
INFO, DEBUG = 1, 2


class Log:
    """Write log lines as -v and -vv ask for, sentences and warnings, and errors.

    05:39:56.884 1825444 POPRUN [I] Waiting for mpirun (PID 1825998)

    Args:
        is_quiet: Write errors only, and the sentences about them.
    """

    def __init__(
        self,
        verbosity: int,
        write: Callable[[str], object],
        *,
        has_color: bool = False,
        is_quiet: bool = False,
    ) -> None:
        self.is_quiet = is_quiet
        self._verbosity = verbosity
        self._write = write
        self._has_color = has_color

    def info(self, message: str) -> None:
        self._line(INFO, "I", message)

    def debug(self, message: str) -> None:
        self._line(DEBUG, "D", message)

    def warn(self, sentence: str) -> None:
        if self.is_quiet:
            return
        self._write(message("warning", printable(sentence), has_color=self._has_color))

    def say(self, sentence: str, *, even_if_quiet: bool = False) -> None:
        if self.is_quiet and not even_if_quiet:
            return
        self._write(f"poprun: {printable(sentence)}\n")

    def error(self, sentence: str) -> None:
        self._write(message("error", printable(sentence), has_color=self._has_color))

    def held_back(self, lines: list[str]) -> "Log":
        """Return a log that adds lines to a list, for `write` to write later."""
        return Log(
            self._verbosity,
            lines.append,
            has_color=self._has_color,
            is_quiet=self.is_quiet,
        )

    def write(self, lines: list[str]) -> None:
        """Write lines that a log has held back."""
        for line in lines:
            self._write(line)

    def _line(self, level: int, letter: str, message: str) -> None:
        if self._verbosity < level:
            return
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        milliseconds = int(now * 1000) % 1000
        self._write(
            f"{clock}.{milliseconds:03d} {os.getpid()} POPRUN [{letter}] "
            f"{printable(message)}\n"
        )


def message(kind: str, text: str, *, has_color: bool) -> str:
    """Return a line of poprun's on stderr: an error, a warning or a hint."""
    word = f"{kind}:"
    return f"poprun: {paint(word, STYLES[kind]) if has_color else word} {text}\n"
