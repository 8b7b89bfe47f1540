"""The buffers of a module, which each local replica has for itself.

Weights are the same on all replicas, so they share the module's parameters. Buffers
that a forward pass changes, such as batch norm's running statistics, are not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from popdist.replicated.buffers import ReplicaBuffers

from ...errors import Error

Buffer = torch.Tensor | None


class ModuleBuffers:
    """The buffers of a module on its local replicas."""

    def __init__(self, module: nn.Module, replicas: int) -> None:
        self._has_replicas = replicas > 1
        self._owners = [
            (owner, name)
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        places = [(owner._buffers, name) for owner, name in self._owners]
        self.of_replicas: ReplicaBuffers[Buffer] = ReplicaBuffers(
            places, replicas, _copy
        )

    @contextmanager
    def restored(self) -> Iterator[Callable[[bool], None]]:
        """Leave the module's buffers, with their values, as they were before the block.

        The block gets a function that raises Error if the buffers have changed so that
        the model cannot run. Its argument says whether replicas share the buffers.
        """
        buffers, values = self.of_replicas.current(), self.of_replicas.copies()

        def check(is_shared: bool) -> None:
            self._check_in_place(buffers)
            if is_shared and self._has_replicas:
                self._check_unchanged(values)

        try:
            yield check
        finally:
            self.of_replicas.place(buffers)
            with torch.no_grad():
                for buffer, value in zip(buffers, values, strict=True):
                    if buffer is not None and value is not None:
                        buffer.copy_(value)

    def _check_in_place(self, buffers: Sequence[Buffer]) -> None:
        """Raise Error if the module has other tensors than these, or none.

        A compiled model writes to those that it was compiled with. Running statistics
        of batch norm and instance norm are exempt.
        """
        for (owner, name), old in zip(self._owners, buffers, strict=True):
            now = owner._buffers.get(name)
            if now is old or isinstance(owner, _NormBase):
                continue
            if now is None:
                raise Error(
                    f"Buffer {name} is removed from the model when calling the forward "
                    "method. Keep it."
                )
            raise Error(
                f"Buffer {name} is reassigned within the model when calling the "
                "forward method. This is not supported. Consider using "
                f"self.{name}.copy_(src) to copy data from a source tensor, where src "
                "is the name of the source tensor."
            )

    def _check_unchanged(self, values: Sequence[Buffer]) -> None:
        """Raise Error if buffers have other values than these.

        Each replica has its own running statistics of batch norm and instance norm.
        """
        for (owner, name), old in zip(self._owners, values, strict=True):
            if not isinstance(owner, _NormBase) and not _same(
                owner._buffers.get(name), old
            ):
                raise Error(
                    "PopTorch does not support broadcasting buffers. If your model is "
                    "able to tolerate buffers becoming out of sync between replicas, "
                    "you can disable buffer broadcasting using "
                    "poptorch.Options.broadcastBuffers(False)."
                )


def _copy(buffer: Buffer) -> Buffer:
    return None if buffer is None else buffer.detach().clone()


def _same(now: Buffer, old: Buffer) -> bool:
    if now is None or old is None:
        return now is old
    return now.shape == old.shape and torch.equal(now, old)
