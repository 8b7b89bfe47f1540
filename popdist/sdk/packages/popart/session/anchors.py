"""The arrays that anchors of one call are written to."""

from collections.abc import Mapping

import numpy as np
import torch

from popdist.replicated.returned import ReturnedBatches, ReturnMode
from popdist.replicated.settings import ReplicatedSettings

from ..data_flow import AnchorReturnType, DataFlow
from ..step_io import Array, StepIO
from ..tensor_info import TensorInfo


def anchor_arrays(
    flow: DataFlow, settings: ReplicatedSettings, infos: Mapping[str, TensorInfo]
) -> dict[str, Array]:
    """Return arrays for all anchors of one call.

    Their dimensions are batches, steps of the gradient accumulation, local replicas and
    the tensor's dimensions; the first three are left out where there is one of them.
    """
    arrays = {}
    for name in flow.anchors():
        info, dims = infos[name], [settings.replicas]
        returned = returned_batches(flow.art(name), settings)
        if returned.mode in (ReturnMode.All, ReturnMode.EveryN):
            batches = settings.device_iterations // returned.period
            dims = [batches, settings.gradient_accumulation, *dims]
        shape = [*(size for size in dims if size != 1), *info.shape()]
        arrays[name] = np.zeros(shape, info.element_type.numpy)
    return arrays


class AnchorWriter:
    """Writes the anchors of one call, in the order of its micro-batches."""

    def __init__(
        self, flow: DataFlow, settings: ReplicatedSettings, io: StepIO
    ) -> None:
        self._settings, self._io = settings, io
        self._returned = {
            name: returned_batches(flow.art(name), settings) for name in flow.anchors()
        }
        self._sums: dict[tuple[str, int], torch.Tensor] = {}

    def add(
        self, number: int, replica: int, values: Mapping[str, torch.Tensor]
    ) -> None:
        """Take the anchors of a micro-batch of a local replica.

        Args:
            number: The number of the replica's micro-batch in the call.
            replica: The local replica.
            values: The anchors by their names.
        """
        for name, returned in self._returned.items():
            value, place = values[name], returned.place(number)
            if returned.mode is ReturnMode.Sum:
                total = self._sums.get((name, replica))
                value = value.clone() if total is None else total + value
                self._sums[name, replica] = value
                if number + 1 < returned.total:
                    continue
            if place is not None:
                index = place * self._settings.replicas + replica
                self._io.write(name, value.detach(), index)


def returned_batches(
    kind: AnchorReturnType, settings: ReplicatedSettings
) -> ReturnedBatches:
    """Return the micro-batches that a call returns an anchor for."""
    mode = ReturnMode[kind.id().name]
    period = kind.rp() if mode is ReturnMode.EveryN else 1
    return ReturnedBatches(mode, period, settings.batches_per_replica)
