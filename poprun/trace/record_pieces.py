"""Reads the files in which the processes of a host have recorded their calls."""

import os
from collections.abc import Iterator

from popdist.call_records import CALLS_SUFFIX, HEADER
from poprun.trace.record_files import stem_of, used_bytes

# How much of a file is read, and goes from host to host, at once.
PIECE = 1 << 20


def record_pieces(directory: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the bytes, in pieces, of the files of records in a folder."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        if stem_of(name) is None:
            continue
        try:
            with open(os.path.join(directory, name), "rb") as file:
                yield from _pieces(file.fileno(), name)
        except OSError:
            continue


def _pieces(fd: int, name: str) -> Iterator[tuple[str, bytes]]:
    left = os.fstat(fd).st_size
    if name.endswith(CALLS_SUFFIX):
        # Room is set aside for more records than there are.
        left = min(left, used_bytes(os.pread(fd, HEADER.size, 0)))
    at = 0
    while left > 0 and (piece := os.pread(fd, min(left, PIECE), at)):
        at, left = at + len(piece), left - len(piece)
        yield name, piece
