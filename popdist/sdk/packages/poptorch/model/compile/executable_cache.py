"""The executable cache: results of compiling, in files for other processes.

Compiling is a forward pass. With a cache, one of the processes that compile the same
model runs it, while the others of its host wait, and later runs do without it. Any:
entries are values of JSON, and keys follow from objects of all kinds.
"""

import fcntl
import hashlib
import inspect
import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._logging import logger
from ..forward.constant_attributes import INTERNAL_NAMES

_FORMAT = 4


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


def key_of(module: nn.Module, *others: Any) -> str | None:
    """Return the key of a model, None if a part of it cannot be compared.

    It follows from the modules with their attributes, hooks and the types of their
    tensors, the source files of their classes, and what else is given.
    """
    digest = hashlib.md5(usedforsecurity=False)
    texts = [repr(module), torch.__version__, str(torch.get_default_dtype())]
    texts += map(repr, others)
    sources: dict[str, bytes] = {}
    for name, part in module.named_modules():
        try:
            digest.update(_content(part))
            for cls in type(part).__mro__:
                # torch's classes follow from its version.
                if cls is not object and cls.__module__.split(".")[0] != "torch":
                    file = inspect.getfile(cls)
                    sources[file] = sources.get(file) or Path(file).read_bytes()
        # A user's class may raise anything while it is pickled.
        except Exception as error:
            logger.info(
                "The executable cache is not used: an attribute of the module %r of "
                "the model cannot be pickled, or its source cannot be read (%s).",
                name,
                error,
            )
            return None
    for content in (*map(str.encode, texts), *map(sources.get, sorted(sources))):
        digest.update((content or b"") + b"\0")
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    """Writes only the type of a tensor, and the same bytes for equal objects."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        # References to objects seen before would depend on their identity.
        self.fast = True

    def persistent_id(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            return value.dtype, tuple(value.shape), value.requires_grad
        if isinstance(value, set | frozenset):
            return sorted(map(repr, value))
        return None


def _content(module: nn.Module) -> bytes:
    """Return all that compiling depends on of one module, as bytes."""
    attributes = {n: v for n, v in vars(module).items() if n not in INTERNAL_NAMES}
    hooks = (module._forward_pre_hooks, module._forward_hooks)
    file = io.BytesIO()
    _Pickler(file).dump(
        (
            module.training,
            attributes,
            [list(hook.values()) for hook in hooks],
            module._parameters,
            module._buffers,
        )
    )
    return file.getvalue()


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a file, None if this version has written none."""
    try:
        entry = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    if not isinstance(entry, dict) or entry.pop("format", None) != _FORMAT:
        return None
    return entry
