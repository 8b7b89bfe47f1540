"""Reads the files in which the processes of a host have recorded their calls."""

import os
from collections.abc import Iterator
from contextlib import suppress

from popdist import call_records as records

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
        with suppress(OSError), open(os.path.join(directory, name), "rb") as file:
            yield from _pieces(file.fileno(), name)


def _pieces(fd: int, name: str) -> Iterator[tuple[str, bytes]]:
    left = os.fstat(fd).st_size
    if name.endswith(records.CALLS_SUFFIX):
        # Room is set aside for more records than there are.
        left = min(left, used_bytes(os.pread(fd, records.HEADER.size, 0)))
    at = 0
    while left > 0 and (piece := os.pread(fd, min(left, PIECE), at)):
        at, left = at + len(piece), left - len(piece)
        yield name, piece


def stem_of(file_name: str) -> str | None:
    """Return what the files of a process have in common, None for another file."""
    for suffix in (records.CALLS_SUFFIX, records.NOTES_SUFFIX):
        if file_name.endswith(suffix):
            return file_name.removesuffix(suffix)
    if file_name.endswith(records.PROFILE_SUFFIX):
        return file_name.split(".")[0]
    return None


def used_bytes(header: bytes) -> int:
    """Return how long a file of calls is, as far as it holds records."""
    if len(header) < records.HEADER.size:
        return 0
    magic, version, _, count, *_ = records.HEADER.unpack_from(header)
    if (magic, version) != (records.RECORDS_MAGIC, records.RECORDS_VERSION):
        return 0
    most: int = min(count, records.MOST_RECORDS) * records.RECORD.size
    return most
