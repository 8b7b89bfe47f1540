"""Attributes of modules that are no parameters and no buffers: constants of a model.

A change in forward has no effect beyond the forward pass, as in a compiled graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

# torch's own attributes of a module, and its training flag.
INTERNAL_NAMES = frozenset(vars(nn.Module()))
_ABSENT = object()
_UNCHANGED = nullcontext()
# The name of a module in the model, and of its attribute.
AttributePath = tuple[str, str]


class ConstantAttributes:
    """The plain attributes of a model as they were when this was made."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._objects = self._current()
        self._values = {path: _copy(value) for path, value in self._objects.items()}
        self._changing: Sequence[AttributePath] = ()

    def changed(self) -> list[AttributePath]:
        """Return which attributes were changed since then, made or removed."""
        now = self._current()
        return [
            path
            for path in sorted({*now, *self._objects})
            if now.get(path, _ABSENT) is not self._objects.get(path, _ABSENT)
            or not _same(now[path], self._values[path])
        ]

    def keep(self, changing: Sequence[AttributePath]) -> None:
        """Remember only the attributes that forward changes."""
        self._changing = changing
        self._values = {path: self._values.get(path, _ABSENT) for path in changing}
        self._objects = {}

    def restored(self) -> AbstractContextManager[None]:
        """Run the block with the kept values, and restore the current ones."""
        return self._exchanged() if self._changing else _UNCHANGED

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        now = {path: self._read(path) for path in self._changing}
        for path, value in self._values.items():
            self._write(path, _copy(value))
        try:
            yield
        finally:
            for path, value in now.items():
                self._write(path, value)

    # Any: attributes have any type.
    def _current(self) -> dict[AttributePath, Any]:
        return {
            (owner, name): value
            for owner, module in self._modules.items()
            for name, value in vars(module).items()
            if name not in INTERNAL_NAMES and _is_plain(value)
        }

    def _read(self, path: AttributePath) -> Any:
        owner, name = path
        return vars(self._modules[owner]).get(name, _ABSENT)

    def _write(self, path: AttributePath, value: Any) -> None:
        owner, name = path
        attributes = self._modules[owner].__dict__
        if value is _ABSENT:
            attributes.pop(name, None)
        else:
            attributes[name] = value


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(
        value, torch.Tensor | bool | int | float | str | tuple | list | dict | set
    )


def _copy(value: Any) -> Any:
    """Return a copy of a value that can be changed in place."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, dict, set):
        return value.copy()
    return value


def _same(now: Any, before: Any) -> bool:
    """Return whether a value that is the same object is as it was."""
    if isinstance(now, torch.Tensor) and now.layout is torch.strided:
        return now.shape == before.shape and torch.equal(now, before)
    if type(now) is dict:
        return list(now) == list(before) and _same([*now.values()], [*before.values()])
    if type(now) in (list, set):
        pairs = zip(now, before, strict=False)
        return len(now) == len(before) and all(a is b for a, b in pairs)
    return True
