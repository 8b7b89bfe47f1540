"""Attributes of modules that are no parameters and no buffers: constants of a model.

A change in forward has no effect beyond the forward pass, as in a compiled graph.
Any: attributes have any type.
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


class ConstantAttributes:
    """The plain attributes and training flags of a model as they were at first.

    Attributes have the name of their module before their own.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._training = [(m, m.training) for m in self._modules.values()]
        self._objects = self._current()
        self._values = {name: _copy(value) for name, value in self._objects.items()}
        self._changing: Sequence[str] = ()

    def changed(self) -> list[str]:
        """Return which attributes were changed since then, made or removed."""
        now = self._current()
        return [
            name
            for name in sorted({*now, *self._objects})
            if now.get(name, _ABSENT) is not self._objects.get(name, _ABSENT)
            or not _same(now[name], self._values[name])
        ]

    def keep(self, changing: Sequence[str]) -> None:
        """Remember only the attributes that forward changes."""
        self._changing = changing
        self._values = {name: self._values.get(name, _ABSENT) for name in changing}
        self._objects = {}

    @contextmanager
    def training_flags(self) -> Iterator[None]:
        """Run the block with the first training flags, and restore the current ones."""
        others = [module for module, flag in self._training if module.training != flag]
        for module in others:
            module.training = not module.training
        try:
            yield
        finally:
            for module in others:
                module.training = not module.training

    def restored(self) -> AbstractContextManager[None]:
        """Run the block with the kept values, and restore the current ones."""
        return self._exchanged() if self._changing else _UNCHANGED

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        now = {}
        for name, value in self._values.items():
            attributes, attribute = self._place(name)
            now[name] = attributes.get(attribute, _ABSENT)
            _write(attributes, attribute, _copy(value))
        try:
            yield
        finally:
            for name, value in now.items():
                _write(*self._place(name), value)

    def _current(self) -> dict[str, Any]:
        return {
            f"{owner}.{name}": value
            for owner, module in self._modules.items()
            for name, value in vars(module).items()
            if name not in INTERNAL_NAMES and _is_plain(value)
        }

    def _place(self, name: str) -> tuple[dict[str, Any], str]:
        owner, _, attribute = name.rpartition(".")
        return self._modules[owner].__dict__, attribute


def _write(attributes: dict[str, Any], name: str, value: Any) -> None:
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
    return value.copy() if type(value) in (list, dict, set) else value


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
