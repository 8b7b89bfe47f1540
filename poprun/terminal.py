"""Which streams of the instances are terminals: by default those of poprun that are."""

import os
from typing import NamedTuple

# Of a terminal that poprun does not have itself.
ROWS, COLUMNS = 24, 80


class Terminals(NamedTuple):
    """What the instances' stdout and stderr are, and how much a line of them takes."""

    stdout: bool = False
    stderr: bool = False
    # Of each line, what poprun's mark before it takes.
    mark_width: int = 0

    def size(self) -> tuple[int, int]:
        """Return rows and columns as they are now."""
        rows, columns = own_size()
        return rows, max(1, columns - self.mark_width)


def choose(tty: str, mark_width: int) -> Terminals:
    """Carry out --tty.

    Args:
        tty: yes, no or auto.
    """
    if tty == "auto":
        return Terminals(os.isatty(1), os.isatty(2), mark_width)
    return Terminals(tty == "yes", tty == "yes", mark_width)


def own_size() -> tuple[int, int]:
    """Return the rows and columns of poprun's terminal."""
    for descriptor in (1, 2):
        try:
            columns, rows = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if rows and columns:
            return rows, columns
    return ROWS, COLUMNS
