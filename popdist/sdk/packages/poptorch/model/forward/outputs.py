"""The outputs of one call: micro-batches' outputs, chosen by the output mode.

Any: a model's forward returns objects of all kinds.
"""

from typing import Any, NoReturn

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ...errors import Error
from ..run_settings import RunSettings

# Types that an IPU lacks, and the types in their place.
NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32}


class Outputs:
    """Collects the outputs of the micro-batches of one call."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._kept: dict[tuple[int, int], list[Any]] = {}
        self._spec: TreeSpec | None = None

    def add(self, iteration: int, step: int, replica: int, output: Any) -> None:
        """Keep the output of a micro-batch, if the output mode wants it."""
        mode, period = self._settings.output_mode.name, self._settings.output_period
        place = self._settings.returned_place(mode, period, iteration, step)
        if place is None:
            return
        leaves = [
            leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
            for leaf in self._leaves_of(output)
        ]
        if (place, replica) in self._kept:
            # The mode is Sum.
            leaves = [
                old + new if isinstance(new, torch.Tensor) else new
                for old, new in zip(self._kept[place, replica], leaves, strict=True)
            ]
        self._kept[place, replica] = leaves

    def _leaves_of(self, output: Any) -> list[Any]:
        if self._spec is None:
            leaves, self._spec = tree_flatten(output)
            return leaves
        # Much faster than to flatten it, for what most models return.
        if isinstance(output, torch.Tensor):
            return [output]
        if type(output) is tuple and all(type(leaf) is torch.Tensor for leaf in output):
            return list(output)
        return tree_flatten(output)[0]

    def result(self) -> Any:
        """Return the outputs in the structure that the model's forward returns."""
        if self._spec is None:
            return None
        rows = [self._kept[key] for key in sorted(self._kept)]
        leaves = [_joined(column) for column in zip(*rows, strict=True)]
        return tree_unflatten(leaves, self._spec)


def _joined(column: tuple[Any, ...]) -> Any:
    """Return one output of all micro-batches that are kept."""
    first = column[0]
    if not isinstance(first, torch.Tensor):
        return column[-1]
    if first.dim() == 0:
        joined = first.clone() if len(column) == 1 else torch.stack(column)
    else:
        joined = torch.cat(column)
    return joined.to(NARROWED.get(joined.dtype, joined.dtype))


def refuse_backward(*_: object, **__: object) -> NoReturn:
    """Raise Error, in place of the backward() of a training model's output."""
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If "
        "you're using a trainingModel, the backwards pass is performed automatically "
        "when invoking the model. If you're using an inferenceModel, you should use a "
        "trainingModel instead."
    )
