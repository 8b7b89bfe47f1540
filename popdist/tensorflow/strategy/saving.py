"""Files stay whole if several instances save to one path at once.

Any instance may save alone, so instances cannot take turns by collectives. They have
the same variables, so it does not matter which of them saves last, but its files must
be whole. Several files cannot be renamed at once, and a checkpoint's index and data
must be from one instance, so one instance saves after the other: it locks a file beside
the path. A single file gets its name when it is complete, for instances that read it,
and for file systems without locks.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from popdist.session import STATE
from popdist.tensorflow.extending import extends

logger = logging.getLogger("popdist.tensorflow")

# The path of what saves several files: its second argument, or one of these.
_PATHS = ("file_prefix", "export_dir")
# The suffixes of models that Keras saves as one file.
_SUFFIXES = (".weights.h5", ".keras", ".h5", ".hdf5")
# The errors of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
# How long an instance waits between two attempts to lock a file.
_LOOK_SECONDS = 0.02


# The files that this instance has locked, in the running call.
_LOCKED: ContextVar[frozenset[str]] = ContextVar("popdist.saving", default=frozenset())


@extends("Model.save", "Model.save_weights")
def save_model(
    save: Callable[..., Any],
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Save a model to a file, which has its name when it is complete."""
    # Without `overwrite`, Keras may ask the user before it saves.
    path = _local_path(filepath) if overwrite else None
    suffix = path and next(filter(path.name.endswith, _SUFFIXES), None)
    with _alone_at(path, is_file=bool(suffix)) as beside:
        if path is None or beside is None or not suffix:
            return save(model, filepath, overwrite, *args, **kwargs)
        temporary = Path(f"{beside}{suffix}")
        try:
            result = save(model, str(temporary), overwrite, *args, **kwargs)
            if temporary.exists():
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return result


@extends("TrackableSaver.save", "save_and_return_nodes")
def save_folder(save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Save several files while no other instance saves to the same path."""
    named = next((kwargs[name] for name in _PATHS if name in kwargs), None)
    with _alone_at(_local_path(args[1] if len(args) > 1 else named)):
        return save(*args, **kwargs)


@extends(
    "BackupAndRestore._save_model",
    "BackupAndRestore.on_train_begin",
    "BackupAndRestore.on_train_end",
)
def back_up(
    method: Callable[..., Any], callback: Any, *args: Any, **kwargs: Any
) -> Any:
    """Change a backup, which is a folder, or read it, while no other one does."""
    with _alone_at(_local_path(callback.backup_dir)):
        return method(callback, *args, **kwargs)


@contextmanager
def _alone_at(path: Path | None, is_file: bool = False) -> Iterator[str | None]:
    """Wait until no other instance of the job saves to a path, unless it is None.

    Returns the name of a temporary file for it, without a suffix, or None if this
    instance need not wait. If the file system has no locks, each call has its own name,
    and there is a warning unless a file is saved.

    Raises:
        TimeoutError: The others took longer than the timeout.
    """
    beside = None if path is None else _name_beside(path)
    if beside is None or STATE.job.place.size == 1 or beside in _LOCKED.get():
        yield None
        return
    os.makedirs(os.path.dirname(beside), exist_ok=True)
    lock = _locked(f"{beside}.lock", f"to {path}")
    if lock is None and not is_file:
        logger.warning(
            "Files that instances save to %s may be mixed, because the file system has "
            "no locks. Let instance 0 alone save.",
            path,
        )
    token = _LOCKED.set(_LOCKED.get() | {beside})
    try:
        # With the lock, this replaces the file of a process that was killed.
        yield beside if lock is not None else f"{beside}-{uuid4().hex}"
    finally:
        _LOCKED.reset(token)
        Path(f"{beside}.lock").unlink(missing_ok=True)
        # The end of a process unlocks the file, too.
        if lock is not None:
            os.close(lock)


def _locked(path: str, target: str) -> int | None:
    """Return the descriptor of a file that this process has locked.

    None: The file system has no locks.
    """
    until, created = 0.0, None
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        status = os.fstat(lock)
        if created != (created := (status.st_ino, status.st_mtime_ns)):
            # Each process that saves creates it.
            until = monotonic() + STATE.settings.timeout
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(lock, path):
                return lock
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            os.close(lock)
            return None
        os.close(lock)
        if monotonic() > until:
            raise TimeoutError(
                f"Another process has not ended saving {target} in "
                f"{STATE.settings.timeout:g} seconds: it has locked {path}. If it "
                "needs longer, set POPDIST_TIMEOUT to more seconds."
            )
        sleep(_LOOK_SECONDS)


def _is_at(descriptor: int, path: str) -> bool:
    """Return whether an open file has still this path."""
    # If another process has removed it, NFS has an error on the file itself.
    with suppress(OSError):
        own = os.fstat(descriptor)
        return own.st_nlink > 0 and os.path.samestat(own, os.stat(path))
    return False


def _local_path(path: Any) -> Path | None:
    """Return a path of this host; None for another one, and for open files."""
    if not isinstance(path, str | os.PathLike):
        return None
    text = os.fspath(path)
    if not isinstance(text, str) or "://" in text:
        return None
    absolute = Path(os.path.abspath(text))
    return absolute if absolute.name else None


def _name_beside(path: Path) -> str:
    """Return a name, without a suffix, of files for saving to a path."""
    # A name may be as long as a file system allows.
    digest = blake2b(os.fsencode(path.name), digest_size=6).hexdigest()
    is_writable = os.access(path.parent, os.W_OK) or not path.is_dir()
    return f"{path.parent if is_writable else path}/.popdist-saving-{digest}"
