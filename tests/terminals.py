"""Programs on a terminal that can be read like a page."""

import signal
from collections.abc import Callable
from typing import Any

import pexpect
import pyte
from conftest import Poprun, wait_for

ROWS, COLUMNS = 24, 60


class Terminal:
    """poprun on a terminal that can be read like a page."""

    def __init__(self, poprun: Poprun, *words: str, **environ: str) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self.shown = b""
        self.process = pexpect.spawn(
            words[0],
            list(words[1:]),
            cwd=str(poprun.directory),
            env={**poprun.environ, "TERM": "xterm", **environ},  # type: ignore[arg-type]
            dimensions=(ROWS, COLUMNS),
            timeout=200,
        )

    def read(self) -> None:
        """Take in what has been written to the terminal."""
        try:
            data = self.process.read_nonblocking(1 << 16, 0.1)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.shown += data
        self._stream.feed(data)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            self.read()
            return condition()

        wait_for(is_so, what)

    def end(self) -> int:
        """Wait for the end; return the exit code."""
        self.wait(lambda: not self.process.isalive(), "the end")
        before = None
        while before != len(self.shown):
            before = len(self.shown)
            self.read()
        self.process.close()
        code = self.process.exitstatus
        return int(code if code is not None else -self.process.signalstatus)

    def lines(self) -> list[str]:
        """Return what is on the screen, without the empty lines at its end."""
        return (
            "\n".join(line.rstrip() for line in self.screen.display)
            .rstrip()
            .split("\n")
        )


# Starts a command on a terminal of its own.
Start = Callable[..., Terminal]


def kill(process: "pexpect.spawn[Any]") -> None:
    """Kill what runs on a terminal, and wait for its end.

    pexpect's own close() gives a process a third of a second to end.
    """
    process.kill(signal.SIGKILL)
    process.wait()
    process.close()
