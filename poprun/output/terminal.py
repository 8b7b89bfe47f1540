"""poprun's terminal: its size, its foreground, and a terminal for each instance."""

import os
import signal
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from poprun.color import is_dumb
from poprun.helpers import processes

# The size of an instance's terminal if poprun has none.
ROWS, COLUMNS = 24, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminals:
    """Whether the instances' stdout and stderr are terminals, and their width."""

    stdout: bool = False
    stderr: bool = False
    # The columns of poprun's mark before each line.
    mark_width: int = 0

    def size(self) -> tuple[int, int]:
        """Return rows and columns as they are now."""
        rows, columns = own_size()
        return rows, max(1, columns - self.mark_width)


def choose_terminals(tty: str, mark_width: int) -> Terminals:
    """Carry out --tty: by default an instance has a terminal where poprun has one.

    Args:
        tty: yes, no or auto.
    """
    stdout, stderr = (
        os.isatty(descriptor) if tty == "auto" else tty == "yes"
        for descriptor in (1, 2)
    )
    return Terminals(stdout=stdout, stderr=stderr, mark_width=mark_width)


def is_foreground(descriptor: int) -> bool:
    """Return whether poprun may use a terminal, which a shell may have taken back."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # it is not the terminal of this session: no shell shares it
        return True


def wait_until_readable(descriptor: int, ending: Iterable[int] = ()) -> bool:
    """Stop while another job has this terminal, as the kernel stops readers.

    The kernel does not stop an instance that reads poprun's terminal, because it has
    another session.

    Returns False without stopping if no shell could continue poprun.

    Args:
        ending: Blocked signals: one that has come ends the wait, too.
    """
    if not os.isatty(descriptor):
        return True
    while not is_foreground(descriptor) and signal.sigpending().isdisjoint(ending):
        if not _can_be_continued():
            return False
        os.kill(os.getpid(), signal.SIGTTIN)
    return True


def _can_be_continued() -> bool:
    """Return whether poprun belongs to a job of a shell that controls jobs."""
    if signal.getsignal(signal.SIGTTIN) is not signal.SIG_DFL:
        return False
    group, ancestor = os.getpgrp(), processes.process(os.getpid())
    try:
        while ancestor is not None and os.getpgid(ancestor.pid) == group:
            ancestor = processes.process(ancestor.parent)
        return ancestor is not None and os.getsid(ancestor.pid) == os.getsid(0)
    except OSError:  # it has ended
        return False


def has_status_line(environ: Mapping[str, str]) -> bool:
    """Return whether a line on stderr can be drawn that disturbs no output.

    The reader of a pipe on stdout may write to the same terminal at any time.
    """
    if not os.isatty(2) or is_dumb(environ):
        return False
    out, err = os.fstat(1), os.fstat(2)
    to_process = stat.S_ISFIFO(out.st_mode) or stat.S_ISSOCK(out.st_mode)
    return not to_process and (not os.isatty(1) or out.st_rdev == err.st_rdev)


def clock(seconds: float) -> str:
    """Write a time span: 0:07, 12:34, 1:02:03, 2 d 3 h."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours_of_day = divmod(hours, 24)
    if days:
        return f"{days} d {hours_of_day} h"
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def own_size() -> tuple[int, int]:
    """Return the rows and columns of poprun's terminal."""
    for descriptor in (1, 2):
        with suppress(OSError):
            columns, rows = os.get_terminal_size(descriptor)
            if rows and columns:
                return rows, columns
    return ROWS, COLUMNS


def columns_of(descriptor: int) -> int | None:
    """Return the width of a terminal; None without a terminal or a width."""
    if not os.isatty(descriptor):
        return None
    return os.get_terminal_size(descriptor).columns or None
