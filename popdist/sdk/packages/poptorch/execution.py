"""The forward pass that runs in this thread: what annotations and ops are part of."""

import re
import threading
from dataclasses import dataclass
from typing import Self

import torch

from .errors import Error
from .regions import Regions

# What torch's losses say of a label.
_NO_CLASS = re.compile(r"Target -?\d+ is out of bounds\.")


@dataclass(frozen=True, slots=True)
class BlockUse:
    """A block that a forward pass has entered, and the IPU that it asks for.

    `stage_id` is None where the execution strategy says which stage it is.
    """

    block_id: str | None
    ipu_id: int | None
    stage_id: int | None = None


class _Local(threading.local):
    execution: "Execution | None" = None


_LOCAL = _Local()


class Execution:
    """A forward pass, which runs in a `with` block."""

    def __init__(self, training: bool = False) -> None:
        self.training = training
        # What went through identity_loss, and the blocks, in order.
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
