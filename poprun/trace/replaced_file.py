"""Replaces a file at once: it has its former or its new contents, whenever poprun ends.

The new contents are written to a file without a name, so they disappear if poprun is
killed.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

# Errors of file systems that have no files without a name.
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


@contextmanager
def replaced_file(path: str) -> Iterator[BinaryIO]:
    """Return a file to write the new contents to, which are in place at the end.

    A file that exists keeps its owner and its mode, and its contents after an error.

    Raises:
        OSError: The file cannot be written.
    """
    with open(_unnamed_file(os.path.dirname(path)), "w+b") as file:
        yield file
        file.flush()
        _put_in_place(file.fileno(), path)


def _unnamed_file(directory: str) -> int:
    """Return the descriptor of a new file without a name.

    Raises:
        OSError: No file can be made in that directory.
    """
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in _NO_UNNAMED or not os.path.isdir(directory):
            raise
    path = _own_name(directory)
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    os.unlink(path)
    return descriptor


def _put_in_place(descriptor: int, path: str) -> None:
    """Give a file the contents of a file without a name.

    Raises:
        OSError: It cannot be written.
    """
    new = _own_name(os.path.dirname(path))
    try:
        with suppress(FileNotFoundError):
            status = os.stat(path)
            os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
        # With src_dir_fd Python lets the kernel follow the link in /proc.
        os.link(f"/proc/self/fd/{descriptor}", new, src_dir_fd=descriptor)
    except OSError:
        # The file has another owner, or the file system gives no name to a file later.
        with open(os.dup(descriptor), "rb") as source, open(path, "wb") as target:
            source.seek(0)
            shutil.copyfileobj(source, target)
        return
    try:
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise


def _own_name(directory: str) -> str:
    # Other users may make files in the directory: they must not know the name before.
    return os.path.join(directory, f".poprun-trace-{os.urandom(8).hex()}")
