"""Automatic casts between float16 and float32, where a model asks for them.

Regions of a forward pass, and modules, ask for them; a policy says which operations
are cast to what. The casts are made while an executor runs the model.
"""

from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from typing import Any, Self, TypeGuard

import torch
from torch import nn
from torch.nn import functional

from .execution import current

# A function of torch, or a class of modules.
PolicyEntry = Callable[..., Any]

# The attribute of a module that has asked, or has asked for none.
SETTING = "_poptorch_autocast"


class autocast(ContextDecorator):
    """A region with automatic casts, or without: a `with` block, or a function.

    Outside of an executor's forward pass it has no effect.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> Self:
        execution = current()
        if execution is not None:
            execution.regions.enter(bool(self.enabled))
        return self

    def __exit__(self, *exception: object) -> None:
        execution = current()
        if execution is not None:
            execution.regions.leave()


class Policy:
    """Which operations and modules are cast to what: four lists of them.

    Those of `fp16` get float16, those of `fp32` float32. Those of `promote` get float32
    where they have inputs of both, those of `demote` float16. The first list that has
    one counts.
    """

    def __init__(
        self,
        fp16: Iterable[PolicyEntry] | None = None,
        fp32: Iterable[PolicyEntry] | None = None,
        promote: Iterable[PolicyEntry] | None = None,
        demote: Iterable[PolicyEntry] | None = None,
    ) -> None:
        """Take functions of torch and classes of modules.

        Raises:
            ValueError: An entry is none of these.
        """
        self.fp16 = list(fp16 or ())
        self.fp32 = list(fp32 or ())
        self.promote = list(promote or ())
        self.demote = list(demote or ())
        for entry in (*self.fp16, *self.fp32, *self.promote, *self.demote):
            if not is_module_class(entry) and (
                isinstance(entry, type) or not hasattr(entry, "__name__")
            ):
                raise ValueError(
                    f"{entry!r} is in a list of a poptorch.autocasting.Policy, but is "
                    "neither a function of torch nor a class of modules. Give one "
                    "such as torch.matmul or torch.nn.Conv2d."
                )

    def __repr__(self) -> str:
        lists = (
            f"{name}={[entry.__name__ for entry in entries]}"
            for name, entries in vars(self).items()
        )
        return f"Policy({', '.join(lists)})"


def is_module_class(entry: object) -> TypeGuard[type[nn.Module]]:
    """Return whether an entry of a policy is a class of modules."""
    return isinstance(entry, type) and issubclass(entry, nn.Module)


def _set_autocast(module: nn.Module, enabled: bool = True) -> None:
    """Run this module, and those in it that have no setting, with automatic casts."""
    setattr(module, SETTING, bool(enabled))


nn.Module.autocast = _set_autocast  # type: ignore[attr-defined]

_FP16 = """
addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc
conv_transpose1d conv_transpose2d conv_transpose3d convolution matmul mm mv
"""
_PROMOTE = """
addcdiv addcmul atan2 bilinear cat cross dot equal index_put stack tensordot
"""
default_fp16: list[PolicyEntry] = [
    *(getattr(torch, name) for name in _FP16.split()),
    functional.linear,
    functional.scaled_dot_product_attention,
    nn.Conv2d,
]
default_fp32: list[PolicyEntry] = []
default_promote: list[PolicyEntry] = [getattr(torch, name) for name in _PROMOTE.split()]
default_demote: list[PolicyEntry] = []
default = Policy(default_fp16, default_fp32, default_promote, default_demote)
