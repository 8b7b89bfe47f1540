"""The executable cache: results of compiling, in files for other processes.

Compiling is a forward pass. With a cache, one of the processes that compile the same
model runs it, while the others of its host wait, and later runs do without it.
"""

import fcntl
import hashlib
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._logging import logger

_FORMAT = 3
_PLAIN = (bool, int, float, str, type(None), torch.dtype)


# Any: values of JSON.
def read_or_make(
    folder: Path, key: str, make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return what the cache in a folder has for a key, or make it and keep it.

    One process of a host makes it; the others wait for that one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{key}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / f"{key}.json"
        entry = _read(path)
        if entry is not None:
            logger.info("Compiled model found in the executable cache: %s", path)
            return entry
        entry = make()
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps({**entry, "format": _FORMAT}))
        partial.replace(path)
        return entry


# Any: whatever compiling depends on and has a repr without addresses.
def key_of(module: nn.Module, *others: Any) -> str | None:
    """Return the key of a model, None if its source cannot be read.

    It follows from the modules with their plain attributes, the source files of their
    classes, and what else is given.
    """
    digest = hashlib.md5(usedforsecurity=False)
    texts = [repr(module), torch.__version__, *map(repr, others)]
    for part in module.modules():
        plain = [(n, v) for n, v in vars(part).items() if isinstance(v, _PLAIN)]
        texts.append(repr(plain))
    files = set()
    for cls in {cls for part in module.modules() for cls in type(part).__mro__}:
        # Those of torch follow from its version.
        if cls is object or cls.__module__.split(".")[0] == "torch":
            continue
        try:
            source = inspect.getsourcefile(cls)
        except TypeError:
            source = None
        if source is None:
            return None
        files.add(source)
    try:
        texts += [Path(file).read_text(errors="replace") for file in sorted(files)]
    except OSError:
        return None
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


# Any: values of JSON.
def _read(path: Path) -> dict[str, Any] | None:
    """Return what a file holds, None if there is none that this version has written."""
    try:
        entry = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    if not isinstance(entry, dict) or entry.pop("format", None) != _FORMAT:
        return None
    return entry
