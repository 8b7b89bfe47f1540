"""Savers that keep files whole if several instances save to one path at once.

Any instance may save alone, so instances cannot take turns by collectives. They have
the same variables, so it does not matter which of them saves last, but its files must
be whole. A single file gets its name when it is complete. Several files cannot be
renamed at once, and a checkpoint's index and data must be from one instance, so one
instance writes them after the other. NFS has no locks for folders: a folder beside the
path names the instance that saves.
"""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from popdist.engine.meet.meeting import read_ended
from popdist.session import STATE

# The path of what saves several files: its second argument, or one of these.
_PATHS = ("file_prefix", "export_dir")
# The suffixes of models that Keras saves as one file.
_SUFFIXES = (".keras", ".h5", ".hdf5")

_PREFIX = ".popdist-saving-"
# How long an instance waits between two looks whether another one has saved.
_LOOK_SECONDS = 0.02

# The folders that name this instance as the owner, in the running call.
_ALONE: ContextVar[frozenset[Path]] = ContextVar("popdist.saving", default=frozenset())


@dataclass(frozen=True, slots=True)
class Saver:
    """How an instance saves.

    job: A name that the instances of the job share, and no other job has: sixteen
        hexadecimal digits.
    rank: The rank of this instance.
    """

    job: str
    rank: int

    def save_model(
        self,
        save: Callable[..., Any],
        model: Any,
        filepath: Any,
        overwrite: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Save a model to a file, which has its name when it is complete."""
        path = _local_path(filepath)
        if path is None or path.suffix not in _SUFFIXES or not overwrite:
            # Without `overwrite`, Keras may ask the user before it saves.
            with self._alone_at(path if overwrite else None):
                return save(model, filepath, overwrite, *args, **kwargs)
        with self._own_folder(path) as folder:
            temporary = folder / path.name
            result = save(model, str(temporary), overwrite, *args, **kwargs)
            if temporary.exists():
                os.replace(temporary, path)
        return result

    def save_folder(self, save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Save several files while no other instance saves to the same path."""
        named = next((kwargs[name] for name in _PATHS if name in kwargs), None)
        with self._alone_at(_local_path(args[1] if len(args) > 1 else named)):
            return save(*args, **kwargs)

    def back_up(
        self, method: Callable[..., Any], callback: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Change a backup, which is a folder, or read it, while no other one does."""
        with self._alone_at(_local_path(callback.backup_dir)):
            return method(callback, *args, **kwargs)

    @contextmanager
    def _alone_at(self, path: Path | None) -> Iterator[None]:
        """Wait until no other instance of the job saves to a path, unless it is None.

        The instance that saves has a file of its name in a folder beside the path. The
        file system lets no other folder take this one's name unless it is empty.

        Raises:
            TimeoutError: An instance took longer than the timeout.
        """
        folder = None if path is None else _folder_beside(path)
        if path is None or folder is None or folder in _ALONE.get():
            yield
            return
        own = f"{self.job}-{self.rank}"
        with self._own_folder(path) as offered:
            (offered / own).touch()
            owners: list[str] | None = None
            while not _renamed(offered, folder):
                self._remove_ended(folder)
                if (current := _owners(folder)) != owners:
                    owners, until = current, monotonic() + STATE.settings.timeout
                elif monotonic() > until:
                    raise TimeoutError(_why_waiting(folder, path))
                sleep(_LOOK_SECONDS)
        token = _ALONE.set(_ALONE.get() | {folder})
        try:
            yield
        finally:
            _ALONE.reset(token)
            (folder / own).unlink(missing_ok=True)
            _remove_empty(folder)

    @contextmanager
    def _own_folder(self, path: Path) -> Iterator[Path]:
        """Return a new folder beside a path, and remove the folders of ended jobs.

        Jobs that run at the same time must not save to one path.
        """
        beside = _folder_beside(path)
        beside.parent.mkdir(parents=True, exist_ok=True)
        own = re.compile(re.escape(beside.name) + r"-([0-9a-f]{16})-[^-]*")
        for name in os.listdir(beside.parent):
            match = own.fullmatch(name)
            if match and match[1] != self.job:
                shutil.rmtree(beside.with_name(name), ignore_errors=True)
        prefix = f"{beside.name}-{self.job}-"
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=beside.parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _remove_ended(self, folder: Path) -> None:
        """Remove from a folder the file of an instance that has ended, or of a job."""
        ended = read_ended(STATE.job.ended_file)
        for owner in _owners(folder):
            job, _, rank = owner.partition("-")
            if job != self.job or int(rank) in ended:
                (folder / owner).unlink(missing_ok=True)
        _remove_empty(folder)


# STATE: how this instance saves, once it has made a strategy among several.
_SAVERS: list[Saver] = []


def save_alone(job: str, rank: int) -> None:
    """Let the instance save so from now on, unless an earlier strategy lets it."""
    if not _SAVERS:
        _SAVERS.append(Saver(job, rank))


def saved(
    by: Callable[..., Any], save: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Save by a method of Saver, if this instance has one."""
    return by(*_SAVERS, save, *args, **kwargs) if _SAVERS else save(*args, **kwargs)


def _local_path(path: Any) -> Path | None:
    """Return a path of this host; None for another one, and for open files."""
    if not isinstance(path, str | os.PathLike):
        return None
    text = os.fspath(path)
    if not isinstance(text, str) or "://" in text:
        return None
    absolute = Path(os.path.abspath(text))
    return absolute if absolute.name else None


def _folder_beside(path: Path) -> Path:
    """Return the folder that names the instance which saves to a path."""
    # A name may be as long as a file system allows.
    digest = blake2b(os.fsencode(path.name), digest_size=6).hexdigest()
    is_writable = os.access(path.parent, os.W_OK) or not path.is_dir()
    return (path.parent if is_writable else path) / f"{_PREFIX}{digest}"


def _renamed(folder: Path, name: Path) -> bool:
    """Rename a folder, unless another one of this name has files."""
    try:
        os.rename(folder, name)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _remove_empty(folder: Path) -> None:
    # Another instance may have taken or removed it.
    with suppress(OSError):
        folder.rmdir()


def _owners(folder: Path) -> list[str]:
    # It may have been removed by now.
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _why_waiting(folder: Path, path: Path) -> str:
    ranks = " and ".join(owner.rpartition("-")[2] for owner in _owners(folder))
    return (
        f"Instance {ranks} has not ended saving to {path} in "
        f"{STATE.settings.timeout:g} seconds. If it is no longer running, remove the "
        f"folder {folder}; else set POPDIST_TIMEOUT to more seconds."
    )
