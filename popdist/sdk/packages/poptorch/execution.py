"""The forward pass that runs in this thread: what annotations and ops are part of."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class BlockUse:
    """A block that a forward pass has entered, and the IPU that it asks for."""

    block_id: str | None
    ipu_id: int | None


class Execution:
    """A forward pass under way."""

    def __init__(self) -> None:
        # What went through identity_loss, and the blocks, in order.
        self.losses: list[torch.Tensor] = []
        self.blocks: list[BlockUse] = []


class _Local(threading.local):
    execution: Execution | None = None


_LOCAL = _Local()


def current() -> Execution | None:
    """Return the forward pass that runs in this thread, None outside of one."""
    return _LOCAL.execution


@contextmanager
def executing() -> Iterator[Execution]:
    """Run a forward pass in the block of code."""
    outer = _LOCAL.execution
    _LOCAL.execution = execution = Execution()
    try:
        yield execution
    finally:
        _LOCAL.execution = outer
