"""The directories of this host for poprun's files: writable, and with room."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

SHARED_MEMORY = "/dev/shm"
# mpirun makes sockets in its directory, and their paths are cut at 107 bytes.
LONGEST_TEMPORARY = 48
# Less than this and MPI's segments do not fit anyway.
ENOUGH_SHARED_MEMORY = 64 << 20
# An instance makes a few files there. A file system that counts none has 0 in all.
ENOUGH_FILES = 1024


def temporary_directory(environ: Mapping[str, str]) -> str:
    """Return where temporary files go: TMPDIR or /tmp, the first that takes a file."""
    tmpdir = environ.get("TMPDIR", "")
    candidates = [tmpdir] if os.path.isabs(tmpdir) else []
    return next(filter(_is_writable, candidates), "/tmp")


def temporary_failure(environ: Mapping[str, str]) -> str:
    """Return a sentence if no temporary file can be made, "" if one can."""
    directory = temporary_directory(environ)
    if _is_writable(directory):
        return ""
    return (
        f"no file can be created in {directory}: free some space there, or set TMPDIR"
    )


def private_directory_place(
    environ: Mapping[str, str], elsewhere: Sequence[Sequence[str]] = ()
) -> str:
    """Return where to create the directory for the files of mpirun and MPI.

    Args:
        elsewhere: The places that each other host of the job has for it.
    """
    for place in private_directory_places(environ):
        if all(place in places for places in elsewhere):
            return place
    return next(private_directory_places(environ), "/tmp")


def private_directory_places(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the places for that directory on this host, the best one first.

    In memory if there is enough of it: MPI's shared segments are there too.
    """
    candidates = []
    with suppress(OSError):
        room = os.statvfs(SHARED_MEMORY)
        has_files = not room.f_files or room.f_favail >= ENOUGH_FILES
        if has_files and room.f_bavail * room.f_frsize >= ENOUGH_SHARED_MEMORY:
            candidates.append(SHARED_MEMORY)
    tmpdir = environ.get("TMPDIR", "")
    if os.path.isabs(tmpdir) and len(tmpdir) <= LONGEST_TEMPORARY:
        candidates.append(tmpdir)
    return filter(_is_writable, [*candidates, "/tmp"])


def _is_writable(directory: str) -> bool:
    """Return whether a file in a directory takes a page.

    Rights do not say whether there is room, or an inode left.
    """
    try:
        # Nearly everywhere it has no name: nothing stays if poprun is killed meanwhile.
        with tempfile.TemporaryFile(dir=directory, prefix="poprun-") as file:
            return os.write(file.fileno(), bytes(4096)) == 4096
    except OSError:
        return False
