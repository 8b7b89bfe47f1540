"""The buffers of a module, which each local replica has for itself.

Weights are the same on all replicas, so they share the module's parameters. Buffers
that a forward pass changes, such as batch norm's running statistics, are not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from popdist.torch.replicated.replicas import Buffer, ReplicaBuffers

from ...errors import Error


class ModuleBuffers(ReplicaBuffers):
    """The buffers of a module on its local replicas."""

    def __init__(self, module: nn.Module, replicas: int) -> None:
        self._owners = [
            (owner, name)
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        places = [(owner._buffers, name) for owner, name in self._owners]
        super().__init__(places, replicas)

    @contextmanager
    def restored(self) -> Iterator[Callable[[bool], None]]:
        """Leave the module's buffers, with their values, as they were before the block.

        The block gets a function that raises Error if the buffers have changed so that
        the model cannot run. Its argument says whether replicas share the buffers.
        Each replica has its own running statistics of batch norm and instance norm,
        which the function does not check.
        """
        buffers, values = self.current(), self.copies()

        def check(is_shared: bool) -> None:
            for (owner, name), *before in zip(
                self._owners, buffers, values, strict=True
            ):
                if not isinstance(owner, _NormBase):
                    _check(name, owner._buffers.get(name), *before, is_shared=is_shared)

        try:
            yield check
        finally:
            self.place(buffers)
            with torch.no_grad():
                for buffer, value in zip(buffers, values, strict=True):
                    if buffer is not None and value is not None:
                        buffer.copy_(value)


def _check(
    name: str, now: Buffer, buffer: Buffer, value: Buffer, *, is_shared: bool
) -> None:
    """Raise Error if a forward pass has changed a buffer so that no model can run.

    A compiled model writes to the buffers that it was compiled with.
    """
    if now is not buffer and now is None:
        raise Error(
            f"Buffer {name} is removed from the model when calling the forward "
            "method. Keep it."
        )
    if now is not buffer:
        raise Error(
            f"Buffer {name} is reassigned within the model when calling the "
            "forward method. This is not supported. Consider using "
            f"self.{name}.copy_(src) to copy data from a source tensor, where src "
            "is the name of the source tensor."
        )
    if is_shared and now is not None and value is not None and not _same(now, value):
        raise Error(
            "PopTorch does not support broadcasting buffers. If your model is "
            "able to tolerate buffers becoming out of sync between replicas, "
            "you can disable buffer broadcasting using "
            "poptorch.Options.broadcastBuffers(False)."
        )


def _same(now: torch.Tensor, old: torch.Tensor) -> bool:
    return now.shape == old.shape and torch.equal(now, old)
