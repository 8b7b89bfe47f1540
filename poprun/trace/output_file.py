"""A file that is replaced at once.

Nothing stays of what is written if poprun is killed before that.
"""

import errno
import os
import shutil
import stat
from contextlib import suppress

# What file systems say that have no files without a name.
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


def unnamed_file(directory: str) -> int:
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


def put_in_place(descriptor: int, path: str) -> None:
    """Let a file have what a file without a name has.

    An existing one keeps its owner and its mode.

    Raises:
        OSError: It cannot be written.
    """
    new = _own_name(os.path.dirname(path))
    try:
        _copy_owner(path, descriptor)
        # With src_dir_fd Python lets the kernel follow the link in /proc.
        os.link(f"/proc/self/fd/{descriptor}", new, src_dir_fd=descriptor)
    except OSError:
        # Of another owner, or of a file system where a file cannot get a name later.
        _copy(descriptor, path)
        return
    try:
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise


def _own_name(directory: str) -> str:
    # Other users may make files in the directory: they must not know it before.
    return os.path.join(directory, f".poprun-trace-{os.urandom(8).hex()}")


def _copy_owner(path: str, descriptor: int) -> None:
    """Give a file the owner and the mode of another one, if there is that.

    Raises:
        OSError: This user may not do so.
    """
    with suppress(FileNotFoundError):
        status = os.stat(path)
        os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))


def _copy(descriptor: int, path: str) -> None:
    with (
        open(os.dup(descriptor), "rb") as source,
        open(path, "wb") as target,
    ):
        source.seek(0)
        shutil.copyfileobj(source, target)
