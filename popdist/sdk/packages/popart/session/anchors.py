"""The anchors of one call: what of which micro-batch goes to which of their places."""

from collections.abc import Mapping

import numpy as np
import torch

from popdist.replicated.settings import ReplicatedSettings

from ..data_flow import DataFlow
from ..enums import AnchorReturnTypeId
from ..step_io import Array, StepIO
from ..tensor_info import TensorInfo


def anchor_arrays(
    flow: DataFlow, settings: ReplicatedSettings, infos: Mapping[str, TensorInfo]
) -> dict[str, Array]:
    """Return arrays for all anchors of one call.

    Their dimensions are batches, steps of the gradient accumulation, local replicas and
    those of the tensor; the first three are left out where there is one of them.
    """
    arrays = {}
    for name in flow.anchors():
        kind, info = flow.art(name), infos[name]
        dims = [settings.replicas]
        if kind.id() in (AnchorReturnTypeId.All, AnchorReturnTypeId.EveryN):
            every = kind.rp() if kind.id() == AnchorReturnTypeId.EveryN else 1
            batches = settings.device_iterations // every
            dims = [batches, settings.gradient_accumulation, *dims]
        shape = [*(size for size in dims if size != 1), *info.shape()]
        arrays[name] = np.zeros(shape, info.element_type.numpy)
    return arrays


class AnchorWriter:
    """Hands out the anchors of one call, in the order of its micro-batches."""

    def __init__(
        self, flow: DataFlow, settings: ReplicatedSettings, io: StepIO
    ) -> None:
        self._flow, self._settings, self._io = flow, settings, io
        self._micro_batches = (
            settings.device_iterations * settings.gradient_accumulation
        )
        self._sums: dict[tuple[str, int], torch.Tensor] = {}

    def add(
        self, number: int, replica: int, values: Mapping[str, torch.Tensor]
    ) -> None:
        """Take the anchors of a micro-batch of a local replica.

        Args:
            number: Which of the replica's micro-batches in this call.
            replica: The local replica.
            values: The anchors by their names.
        """
        last = number == self._micro_batches - 1
        for name in self._flow.anchors():
            kind, value = self._flow.art(name), values[name]
            if kind.id() == AnchorReturnTypeId.All:
                self._write(name, value, number, replica)
            elif kind.id() == AnchorReturnTypeId.EveryN:
                if (number + 1) % kind.rp() == 0:
                    self._write(name, value, number // kind.rp(), replica)
            elif kind.id() == AnchorReturnTypeId.Final:
                if last:
                    self._write(name, value, 0, replica)
            else:
                total = self._sums.get((name, replica))
                total = value.clone() if total is None else total + value
                self._sums[name, replica] = total
                if last:
                    self._write(name, total, 0, replica)

    def _write(self, name: str, value: torch.Tensor, place: int, replica: int) -> None:
        self._io.write(name, value.detach(), place * self._settings.replicas + replica)
