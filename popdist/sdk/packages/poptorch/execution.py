"""The forward pass of this thread, with its blocks, losses and regions."""

import re
import threading
from dataclasses import dataclass
from typing import Self

import torch

from .errors import Error

# The error of torch's losses for an unknown label.
_NO_CLASS = re.compile(r"Target -?\d+ is out of bounds\.")


@dataclass(frozen=True, slots=True)
class BlockUse:
    """A block that a forward pass has entered, and its IPU.

    `stage_id` is None where the execution strategy chooses the stage.
    """

    block_id: str | None
    ipu_id: int | None
    stage_id: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """To what an operation's inputs are cast: always, or only for mixed types."""

    dtype: torch.dtype
    only_mixed: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a forward pass, and the rule of the innermost module that has one."""

    enabled: bool = False
    module_rule: Rule | None = None


class Regions:
    """The regions that a forward pass is in; the last one counts."""

    def __init__(self) -> None:
        self._regions = [Region()]
        # Whether any of them was one with casts; and whether one may be.
        self.casts = False
        self.may_cast = True

    @property
    def current(self) -> Region:
        """The innermost region."""
        return self._regions[-1]

    @property
    def depth(self) -> int:
        """How many regions there are."""
        return len(self._regions)

    def enter(self, enabled: bool | None, module_rule: Rule | None = None) -> None:
        """Begin a region; None is the value of the region around it.

        Raises:
            Error: It has casts, and the model was compiled without.
        """
        around = self.current
        enabled = around.enabled if enabled is None else enabled
        if enabled and not self.may_cast:
            raise Error(
                "The model enters a region of poptorch.autocast, but entered none "
                "when it was compiled. Let forward() do the same in every call; if the "
                "executable cache holds the model as it was, empty its folder."
            )
        self._regions.append(Region(enabled, module_rule or around.module_rule))
        self.casts = self.casts or enabled

    def leave(self, depth: int | None = None) -> None:
        """End the innermost region, or all but the first so many."""
        del self._regions[self.depth - 1 if depth is None else depth :]


class _Local(threading.local):
    execution: "Execution | None" = None


_LOCAL = _Local()


class Execution:
    """A forward pass, which runs in a `with` block."""

    def __init__(self, training: bool = False) -> None:
        self.training = training
        # The arguments of identity_loss, and the blocks, in order.
        self.losses: list[torch.Tensor] = []
        self.blocks: list[BlockUse] = []
        # Whether something was computed before the first block.
        self.computes_before_blocks = False
        self.regions = Regions()
        self._outer: Execution | None = None

    def __enter__(self) -> Self:
        self._outer, _LOCAL.execution = _LOCAL.execution, self
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> None:
        """End the forward pass.

        Raises:
            Error: A label is no class of the loss that it was given to.
        """
        _LOCAL.execution = self._outer
        if isinstance(error, IndexError) and _NO_CLASS.match(str(error)):
            raise Error(
                f"{error} No class of the loss has this label. On an IPU such a label "
                "has the probability 0, and training continues; popdist's stand-in for "
                "poptorch does not support that. Correct the labels, or pass the label "
                "to ignore as ignore_index."
            ) from error


def current() -> Execution | None:
    """Return the forward pass that runs in this thread, None outside of one."""
    return _LOCAL.execution
