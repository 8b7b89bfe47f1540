"""Event files of tf.summary: instance 0 alone writes them to a shared folder.

Any instance may make a writer alone, so it cannot ask another one for its folder. The
other instances write to temporary folders. Once a writer is closed, or the program
ends, its files move to the program's folder, unless instance 0 has written there.
"""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from socket import gethostname
from time import time
from typing import Any
from zlib import crc32

import tensorflow as tf

from popdist.replicated.members import Members
from popdist.session import STATE
from popdist.tensorflow.extending import extends
from popdist.tensorflow.tensors.memory import Tensor

# The second at which TensorFlow makes the file, the host, and the id of the process.
_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.(.+)\.(\d+)\.\d+(?:\D.*)?")
_IMPORTED = int(time())


@dataclass
class _Folders:
    """STATE: The folders of this process's writers, and who else writes to them."""

    process: int = field(default_factory=os.getpid)
    # The host of each instance as a number, its process, which may have the same id on
    # two hosts, and when it began; none before they have met.
    processes: list[tuple[int, int, int]] = field(default_factory=list)
    # The temporary folder of each open writer, with its resource and its own folder.
    temporary: dict[str, tuple[Tensor, str]] = field(default_factory=dict)


_FOLDERS = _Folders()


def meet_writers(members: Members) -> None:
    """Learn the processes of the instances, which all must call it."""
    own = _number_of(gethostname()), os.getpid(), _IMPORTED
    _FOLDERS.processes = [*zip(*map(members.gather, own), strict=True)]


@extends("create_summary_file_writer")
def create_writer(
    create: Callable[..., Any],
    writer: Tensor,
    logdir: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Create the event file of a writer, or a temporary one."""
    place = STATE.job.place
    if place.size == 1 or not tf.executing_eagerly():
        return create(writer, logdir, *args, **kwargs)
    folder = os.fsdecode(tf.convert_to_tensor(logdir).numpy())
    if place.rank:
        temporary = tempfile.mkdtemp(prefix="popdist-summaries-")
        _FOLDERS.temporary[temporary] = writer, folder
        return create(writer, temporary, *args, **kwargs)
    created = create(writer, logdir, *args, **kwargs)
    for name, rank in _files_of_instances(folder):
        if rank:
            _remove(f"{folder}/{name}")
    return created


@extends("_ResourceSummaryWriter.close")
def close_writer(close: Callable[[Any], Any], writer: Any) -> Any:
    """Close a writer, and move its files to its folder."""
    closed = close(writer)
    for temporary, (resource, _) in [*_FOLDERS.temporary.items()]:
        if resource is writer._resource:
            _move(temporary)
    return closed


def _move_all() -> None:
    """Move the files of all writers at the end of the process, but for a fork's."""
    if os.getpid() != _FOLDERS.process:
        return
    for temporary, (resource, _) in [*_FOLDERS.temporary.items()]:
        # TensorFlow has flushed the events of a writer that was deleted.
        with suppress(tf.errors.OpError):
            tf.raw_ops.FlushSummaryWriter(writer=resource)
        _move(temporary)


def _move(temporary: str) -> None:
    """Move event files to the program's folder, unless instance 0 has written there."""
    _, folder = _FOLDERS.temporary.pop(temporary)
    if not _is_of_first(folder):
        tf.io.gfile.makedirs(folder)
        names = os.listdir(temporary)
        for name in names:
            tf.io.gfile.copy(f"{temporary}/{name}", f"{folder}/{name}")
        # Instance 0 may have looked for them before they were there.
        for name in names if _is_of_first(folder) else ():
            _remove(f"{folder}/{name}")
    shutil.rmtree(temporary, ignore_errors=True)


atexit.register(_move_all)


def _is_of_first(folder: str) -> bool:
    """Return whether instance 0 of this job has an event file in a folder."""
    return any(rank == 0 for _, rank in _files_of_instances(folder))


def _files_of_instances(folder: str) -> list[tuple[str, int]]:
    """Return the names of this job's event files in a folder, and their instances."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return [
        (name, rank)
        for name, match in zip(names, map(_NAME.fullmatch, names), strict=True)
        if match is not None
        for rank, (host, process, begun) in enumerate(_FOLDERS.processes)
        if (_number_of(match[2]), int(match[3])) == (host, process)
        and int(match[1]) >= begun
    ]


def _number_of(host: str) -> int:
    return crc32(host.encode())


def _remove(path: str) -> None:
    # Another instance may have removed it.
    with suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(path)
