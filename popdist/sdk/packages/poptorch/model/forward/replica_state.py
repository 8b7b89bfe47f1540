"""What each local replica has for itself: buffers and random numbers.

Weights are the same on all replicas, so they share the module's parameters. Buffers
that a forward pass changes, as batch norm's running statistics, are not: the module
holds those of replica 0, and those of the others are put in place while they run.
"""

from collections.abc import Callable, Iterator, Sequence
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

    @contextmanager
    def restored(self) -> Iterator[Callable[[bool], None]]:
        """Leave the module's buffers, with their values, as they were before the block.

        What the block gets checks how they have changed so far, and raises Error if
        the model cannot run so. It takes whether the options have replicas share them.
        """
        buffers, values = self._current(), self._copies()

        def check(is_shared: bool) -> None:
            self._check_in_place(buffers)
            if is_shared and self._replicas > 1:
                self._check_unchanged(values)

        try:
            yield check
        finally:
            self._place(buffers)
            with torch.no_grad():
                for buffer, value in zip(buffers, values, strict=True):
                    if buffer is not None and value is not None:
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
        first = self._current()
        self._place(self._others[replica - 1])
        try:
            yield
        finally:
            self._others[replica - 1] = self._current()
            self._place(first)

    def prepare(self) -> None:
        """Copy the module's buffers for all replicas, before replica 0 changes them."""
        if self._places and not self._others:
            self._others = [self._copies() for _ in range(1, self._replicas)]

    def _check_in_place(self, buffers: Sequence[torch.Tensor | None]) -> None:
        """Raise Error if the module has other tensors than these, or none.

        A compiled model writes to those that it was compiled with. Running statistics
        of batch norm and instance norm are exempt.
        """
        for (owner, name), now, old in zip(
            self._places, self._current(), buffers, strict=True
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

    def _check_unchanged(self, values: Sequence[torch.Tensor | None]) -> None:
        """Raise Error if buffers have other values than these.

        Running statistics of batch norm and instance norm are each replica's own.
        """
        for (owner, _), now, old in zip(
            self._places, self._current(), values, strict=True
        ):
            if not isinstance(owner, _NormBase) and not _same(now, old):
                raise Error(
                    "PopTorch does not support broadcasting buffers. If your model is "
                    "able to tolerate buffers becoming out of sync between replicas, "
                    "you can disable buffer broadcasting using "
                    "poptorch.Options.broadcastBuffers(False)."
                )

    def _current(self) -> list[torch.Tensor | None]:
        """Return the module's buffers themselves."""
        return [owner._buffers.get(name) for owner, name in self._places]

    def _copies(self) -> list[torch.Tensor | None]:
        return [
            None if buffer is None else buffer.detach().clone()
            for buffer in self._current()
        ]

    def _place(self, buffers: list[torch.Tensor | None]) -> None:
        for (owner, name), buffer in zip(self._places, buffers, strict=True):
            owner._buffers[name] = buffer


def _same(now: torch.Tensor | None, old: torch.Tensor | None) -> bool:
    if now is None or old is None:
        return now is old
    return now.shape == old.shape and torch.equal(now, old)


class RandomState:
    """Random numbers of the replicas: a stream for each in every iteration."""

    def __init__(self, seed: int | None) -> None:
        """Begin at the first iteration.

        Args:
            seed: That of the model; None for torch's, at the time of the first use.
        """
        self._seed = seed
        # How many device iterations have run.
        self.iterations = 0
        # The number in the job of local replica 0.
        self.first_replica = 0

    @property
    def numbers(self) -> list[int]:
        """The seed of the model, and how many iterations it ran."""
        if self._seed is None:
            self._seed = torch.initial_seed()
        return [self._seed, self.iterations]

    @numbers.setter
    def numbers(self, numbers: list[int]) -> None:
        self._seed, self.iterations = numbers

    def begin(self, replica: int) -> None:
        """Seed torch's generator for a local replica in the current iteration."""
        seed, iteration = self.numbers
        torch.default_generator.manual_seed(
            seed_of(seed, self.first_replica + replica, iteration)
        )


@contextmanager
def host_random_state_kept() -> Iterator[None]:
    """Leave torch's generator as it was: models do not draw from the host's."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
