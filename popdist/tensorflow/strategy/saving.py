"""Files that several instances save at once, which would write over each other.

Instances have the same variables, so it does not matter which of them saves last, but
what it leaves must be whole: a file is replaced by a complete one, and folders and
checkpoints, which are several files, are written by one instance after the other.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from popdist.tensorflow.strategy.extending import extend

logger = logging.getLogger("popdist.tensorflow")

# The methods of models that write a file, and the functions that write several.
_OF_FILES = (
    ("keras.src.models.model", "Model", "save"),
    ("keras.src.models.model", "Model", "save_weights"),
    ("tf_keras.src.engine.training", "Model", "save"),
    ("tf_keras.src.engine.training", "Model", "save_weights"),
)
_OF_FOLDERS = (
    ("tensorflow.python.checkpoint.checkpoint", "TrackableSaver", "save"),
    ("tensorflow.python.saved_model.save", "", "save_and_return_nodes"),
)
_SUFFIXES = (".keras", ".h5", ".hdf5")


def keep_files_whole(rank: int) -> None:
    """Let the Kerases that are imported, and TensorFlow, save files so.

    Args:
        rank: That of this instance.
    """
    for place in _OF_FILES:
        extend(*place, partial(save_file, rank))
    for place in _OF_FOLDERS:
        extend(*place, save_folder)


def save_file(
    rank: int,
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
        return save(model, filepath, overwrite, *args, **kwargs)
    temporary = path.with_name(f".{rank}-{path.name}")
    try:
        result = save(model, str(temporary), overwrite, *args, **kwargs)
        if temporary.exists():
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return result


def save_folder(save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Save something to several files while no other instance saves beside them."""
    named = kwargs.get("file_prefix", kwargs.get("export_dir"))
    path = _local_path(args[1] if len(args) > 1 else named)
    if path is None:
        return save(*args, **kwargs)
    with _alone_in(path.parent):
        return save(*args, **kwargs)


def _local_path(path: Any) -> Path | None:
    """Return a path of this host; None for another one, and for open files."""
    if not isinstance(path, str | os.PathLike):
        return None
    text = os.fspath(path)
    return None if not isinstance(text, str) or "://" in text else Path(text)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other instance saves something in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning(
                "%s cannot be locked: %s. Let instance 0 alone save there.",
                folder,
                error.strerror,
            )
        yield
    finally:
        os.close(descriptor)
