"""What each local replica has for itself: buffers and random numbers.

Weights are the same on all replicas, so they share the module's parameters. Buffers
that a forward pass changes, as batch norm's running statistics, are not: the module
holds those of replica 0, and those of the others are put in place while they run.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from popdist.replicated.seeds import seed_of

from ...errors import Error

_UNCHANGED = nullcontext()


class ReplicaBuffers:
    """The buffers of all local replicas of a module."""

    def __init__(self, module: nn.Module, replicas: int) -> None:
        self._replicas = replicas
        self._places = [
            (owner, name)
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        # Those of the replicas after the first, once they are needed.
        self._others: list[list[torch.Tensor | None]] = []

    def snapshot(self) -> list[torch.Tensor | None]:
        """Return copies of the module's buffers."""
        return [
            None if buffer is None else buffer.detach().clone()
            for buffer in self.objects()
        ]

    def changed_since(self, snapshot: list[torch.Tensor | None]) -> list[nn.Module]:
        """Return the modules whose buffers differ from what they were."""
        return [
            owner
            for (owner, _), now, old in zip(
                self._places, self.objects(), snapshot, strict=True
            )
            if now is not old and not _same(now, old)
        ]

    def check_in_place(self, objects: list[torch.Tensor | None]) -> None:
        """Raise Error if buffers have been removed or are other tensors than these.

        A compiled model writes to those that it was compiled with. Running statistics
        of batch norm and instance norm are exempt.
        """
        for (owner, name), now, old in zip(
            self._places, self.objects(), objects, strict=True
        ):
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

    def restore(
        self, objects: list[torch.Tensor | None], values: list[torch.Tensor | None]
    ) -> None:
        """Put buffers back in place, with the values that they had."""
        self._place(objects)
        for buffer, value in zip(objects, values, strict=True):
            if buffer is not None and value is not None:
                with torch.no_grad():
                    buffer.copy_(value)

    def reset(self) -> None:
        """Give all replicas the buffers that the module has now."""
        self._others = []

    def of(self, replica: int) -> AbstractContextManager[None]:
        """Give the module the buffers of a replica, until the block ends."""
        return self._exchanged(replica) if replica and self._places else _UNCHANGED

    @contextmanager
    def _exchanged(self, replica: int) -> Iterator[None]:
        self.prepare()
        first = self.objects()
        self._place(self._others[replica - 1])
        try:
            yield
        finally:
            self._others[replica - 1] = self.objects()
            self._place(first)

    def prepare(self) -> None:
        """Copy the module's buffers for all replicas, before replica 0 changes them."""
        if self._places and not self._others:
            self._others = [self.snapshot() for _ in range(1, self._replicas)]

    def objects(self) -> list[torch.Tensor | None]:
        """Return the module's buffers themselves."""
        return [owner._buffers.get(name) for owner, name in self._places]

    def _place(self, buffers: list[torch.Tensor | None]) -> None:
        for (owner, name), buffer in zip(self._places, buffers, strict=True):
            owner._buffers[name] = buffer


def check_broadcast(changed: list[nn.Module], replicas: int, broadcast: bool) -> None:
    """Raise Error if replicas would change buffers that they are to have in common.

    Running statistics of batch norm and instance norm are each replica's own.
    """
    others = [owner for owner in changed if not isinstance(owner, _NormBase)]
    if others and broadcast and replicas > 1:
        raise Error(
            "PopTorch does not support broadcasting buffers. If your model is able to "
            "tolerate buffers becoming out of sync between replicas, you can disable "
            "buffer broadcasting using poptorch.Options.broadcastBuffers(False)."
        )


def _same(now: torch.Tensor | None, old: torch.Tensor | None) -> bool:
    if now is None or old is None:
        return now is old
    return now.shape == old.shape and torch.equal(now, old)


class RandomState:
    """Random numbers of the replicas: a stream for each in every iteration."""

    def __init__(self, seed: int, first_replica: int = 0) -> None:
        self.seed = seed
        # How many device iterations have run.
        self.iterations = 0
        self._first_replica = first_replica

    def begin(self, replica: int) -> None:
        """Seed torch's generator for a local replica in the current iteration."""
        seed = seed_of(self.seed, self._first_replica + replica, self.iterations)
        torch.default_generator.manual_seed(seed)


@contextmanager
def host_random_state_kept() -> Iterator[None]:
    """Leave torch's generator as it was: models do not draw from the host's."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
