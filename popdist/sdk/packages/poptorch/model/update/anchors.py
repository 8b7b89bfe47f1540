"""The tensors of Options.anchorTensor(): gradients and updated weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from popdist.torch.replicated.trainer import Row

from ...enums import OutputMode
from ...errors import Error

GRADIENT, UPDATED = "Gradient___", "UpdatedVar___"
LOSS_SCALE = "finalLossScale"


class Anchors:
    """The anchored tensors of the last call, from each of its weight updates.

    A gradient is reduced over all replicas of the job, as for the update.
    """

    def __init__(
        self,
        # Any: long name, whether the options' own mode holds, mode, period.
        anchored: Mapping[str, Sequence[Any]],
        mode: OutputMode,
        period: int,
    ) -> None:
        """Take over what options anchor; mode and period are the outputs'."""
        self._long = {short: str(values[0]) for short, values in anchored.items()}
        self._modes = {
            short: (mode, period) if values[1] else (OutputMode(values[2]), values[3])
            for short, values in anchored.items()
        }
        self._kept: dict[str, list[torch.Tensor]] = {}

    def begin(self) -> None:
        """Forget what the call before has kept."""
        self._kept = {}

    def keep(
        self,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        gradients: Row,
        loss_scale: float,
    ) -> None:
        """Keep the anchored tensors of one weight update."""
        if not self._long:
            return
        tensors = {LOSS_SCALE: torch.tensor(float(loss_scale))}
        for name, weight, gradient in zip(names, parameters, gradients, strict=True):
            tensors[UPDATED + name] = weight.detach()
            tensors[GRADIENT + name] = (
                torch.zeros_like(weight) if gradient is None else gradient
            ).detach()
        for short, long in self._long.items():
            # Programs name the weight fc.weight after PopTorch's module around the
            # user's, too: Gradient___model.fc.weight.
            own = long.replace("___model.", "___", 1)
            tensor = tensors.get(long, tensors.get(own))
            if tensor is not None:
                self._kept.setdefault(short, []).append(tensor.clone())

    def tensor(self, short_name: str) -> torch.Tensor:
        """Return an anchored tensor of the last call, as its output mode says.

        With `All` and `EveryN`, several updates are in a first dimension.

        Raises:
            Error: It is none that is kept here, or there was no update.
        """
        kept = self._kept.get(short_name)
        if not kept:
            raise Error(
                f"{self._long[short_name]!r}, anchored as {short_name!r}, is not a "
                "tensor of the last call: a trainingModel that has run keeps the "
                f"gradients and weights of parameters, {GRADIENT}NAME and "
                f"{UPDATED}NAME, and {LOSS_SCALE}."
            )
        mode, period = self._modes[short_name]
        if mode == OutputMode.Sum:
            return torch.stack(kept).sum(0)
        if mode == OutputMode.EveryN:
            kept = kept[period - 1 :: period]
        if mode in (OutputMode.Final, OutputMode.Default) or len(kept) == 1:
            return kept[-1]
        return torch.stack(kept)
