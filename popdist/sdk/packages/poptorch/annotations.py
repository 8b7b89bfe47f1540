"""Annotations of where and when parts of a model run on IPUs.

They change no result here. They are recorded, and tell how many IPUs a replica needs.
Any: layers and functions take objects of all kinds.
"""

import copy
from collections.abc import Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from ._logging import warn_deprecated
from .errors import Error
from .execution import BlockUse, current
from .options.strategies import (
    PipelinedExecution,
    ShardedExecution,
    Stage,
    _IExecutionStrategy,
)


class Block(ContextDecorator):
    """A part of a forward pass: the code in a `with` block, or a function.

    Its stage and its IPU follow from the execution strategy or from ipu_id.
    """

    _auto_ids: ClassVar[bool] = False

    @staticmethod
    def useAutoId() -> None:
        """Give blocks without a user_id "0", "1" and so on in each forward pass."""
        Block._auto_ids = True

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block here. It ends where the next one begins."""
        _enter(user_id, ipu_id)

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        _check_ids(user_id, ipu_id)
        self._user_id, self._ipu_id = user_id, ipu_id

    def __enter__(self) -> None:
        _enter(self._user_id, self._ipu_id)

    def __exit__(self, *exception: object) -> None:
        pass


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Block:
    """Make each call of the decorated function a block."""
    return Block(user_id, ipu_id)


@dataclass(frozen=True)
class _BlockHook:
    """Begins a block before the forward pass of a layer."""

    user_id: str | None
    ipu_id: int | None

    def __call__(self, layer: nn.Module, args: Any) -> None:
        _enter(self.user_id, self.ipu_id)


def BeginBlock(
    layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None
) -> Any:
    """Begin a block where this layer runs, and return the layer.

    For a function, return one that begins a block and calls it.

    Raises:
        Error: It is no layer and no function, or has a block already.
    """
    _check_ids(user_id, ipu_id)
    if not isinstance(layer_to_call, nn.Module):
        if callable(layer_to_call):
            return BlockFunction(user_id, ipu_id)(layer_to_call)
        raise Error(
            "module is not an instance of torch.nn.Module or function: it is a "
            f"{type(layer_to_call).__name__}."
        )
    if _block_hooks(layer_to_call):
        raise Error(
            "module has already been assigned to a block. Call poptorch.removeBlocks() "
            "on it first."
        )
    layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
    return layer_to_call


def IPU(ipu_id: int, layer_to_call: Any = None) -> Any:
    """Begin a block on an IPU: an old name of BeginBlock and Block."""
    warn_deprecated("poptorch.IPU", "poptorch.BeginBlock or poptorch.Block")
    if layer_to_call is None:
        return Block(ipu_id=ipu_id)
    return BeginBlock(layer_to_call, ipu_id=ipu_id)


def removeBlocks(module: nn.Module) -> None:
    """Remove the blocks that BeginBlock began at this module and those below it."""
    for layer in module.modules():
        for key in _block_hooks(layer):
            del layer._forward_pre_hooks[key]
            layer._forward_pre_hooks_with_kwargs.pop(key, None)


def count_ipus(strategy: _IExecutionStrategy, blocks: Sequence[BlockUse]) -> int:
    """Return how many IPUs a forward pass with these blocks is put on.

    Raises:
        AssertionError: The strategy has no stage for a block.
    """
    explicit = set(strategy._block_map)
    ipus = {0}
    for position, (block, stage) in enumerate(_stages_of(strategy, blocks)):
        if block.ipu_id is not None:
            ipus.add(block.ipu_id)
        elif stage._ipu is not None:
            ipus.add(stage._ipu)
        else:
            ipus.add(stage._stage_id if block.block_id in explicit else position)
    return max(ipus) + 1


def is_pipeline(strategy: _IExecutionStrategy) -> bool:
    """Return whether the stages of a model run at once, on different micro-batches."""
    return isinstance(strategy, PipelinedExecution) and (
        not isinstance(strategy, ShardedExecution)
    )


def count_stages(
    strategy: _IExecutionStrategy,
    blocks: Sequence[BlockUse],
    computes_before_blocks: bool = False,
) -> int:
    """Return how many pipeline stages a forward pass has; 1 if it is no pipeline.

    Operations before the first block are in stage 0.
    """
    if not is_pipeline(strategy):
        return 1
    stages = {stage._stage_id for _, stage in _stages_of(strategy, blocks)}
    if computes_before_blocks:
        stages.add(0)
    return max(1, len(stages))


def _stages_of(
    strategy: _IExecutionStrategy, blocks: Sequence[BlockUse]
) -> list[tuple[BlockUse, Stage]]:
    """Return the blocks in order, each once, and their stages."""
    strategy = copy.deepcopy(strategy)
    stages: dict[str, tuple[BlockUse, Stage]] = {}
    for index, block in enumerate(blocks):
        name = block.block_id or f"block {index}"
        if block.stage_id is not None:
            stages[name] = block, Stage()
            stages[name][1]._stage_id = block.stage_id
        elif name not in stages:
            stages[name] = block, strategy.stageOf(name, block.ipu_id)
    return list(stages.values())


def begin_stage(stage_id: int, phase_id: int, ipu_id: int) -> None:
    """Begin a block whose stage and IPU are given: torch.ops.poptorch's."""
    if execution := current():
        execution.blocks.append(BlockUse(None, ipu_id, stage_id))


def _enter(user_id: str | None, ipu_id: int | None) -> None:
    execution = current()
    if execution is None:
        return
    if user_id is None and Block._auto_ids:
        user_id = str(len(execution.blocks))
    block_id = None if user_id is None else str(user_id)
    execution.blocks.append(BlockUse(block_id, ipu_id))


def _check_ids(user_id: object, ipu_id: object) -> None:
    if user_id is not None and not isinstance(user_id, str | int):
        raise Error(f"user_id is {user_id!r}, but must be a string.")
    if ipu_id is not None and (not isinstance(ipu_id, int) or ipu_id < 0):
        raise Error(f"ipu_id is {ipu_id!r}, but must be a whole number from 0.")


def _block_hooks(layer: nn.Module) -> list[int]:
    return [
        key
        for key, hook in layer._forward_pre_hooks.items()
        if isinstance(hook, _BlockHook)
    ]
