"""The local replicas of one model: their buffers, random numbers, and micro-batches."""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

from popdist.replicated.seeds import seed_of
from popdist.replicated.settings import ReplicatedSettings
from popdist.torch.replicated.trainer import Trainer

Buffer = torch.Tensor | None


class ReplicatedCall(Protocol):
    """A model with the inputs and outputs of one call."""

    def begin_iteration(self, iteration: int) -> None:
        """Prepare the inputs of a device iteration."""

    def run_micro_batch(self, iteration: int, step: int, replica: int) -> None:
        """Run forward and, when training, backward on a local replica.

        Args:
            iteration: The device iteration.
            step: The step of the gradient accumulation in it.
            replica: The local replica.
        """

    def end_iteration(self, iteration: int) -> None:
        """Return the outputs of a device iteration, after its weight update."""


class ReplicaBuffers:
    """Tensors that each local replica has for itself, such as running statistics.

    The model holds the buffers of replica 0. The buffers of another replica replace
    them while it runs.
    """

    # Any: the values of a mapping may be of a narrower type than Buffer.
    def __init__(
        self, places: Sequence[tuple[MutableMapping[str, Any], str]], replicas: int
    ) -> None:
        """Make buffers that are equal on all replicas.

        Args:
            places: The mapping in which the model holds each buffer, and its key.
            replicas: The number of local replicas.
        """
        self._places, self._replicas = places, replicas
        # The buffers of the replicas after the first, once they are needed.
        self._others: list[list[Buffer]] = []

    def reset(self) -> None:
        """Give all replicas the buffers that the model has now."""
        self._others = []

    def prepare(self) -> None:
        """Copy the model's buffers for all replicas, before replica 0 changes them."""
        if self._places and not self._others:
            self._others = [self.copies() for _ in range(1, self._replicas)]

    def of(self, replica: int) -> AbstractContextManager[None]:
        """Give the model the buffers of a replica, until the block ends."""
        return self._exchanged(replica) if replica and self._places else nullcontext()

    @contextmanager
    def _exchanged(self, replica: int) -> Iterator[None]:
        first = self.current()
        self.place(self._others[replica - 1])
        try:
            yield
        finally:
            self._others[replica - 1] = self.current()
            self.place(first)

    def current(self) -> list[Buffer]:
        """Return the model's buffers themselves."""
        return [holder[name] for holder, name in self._places]

    def copies(self) -> list[Buffer]:
        """Return copies of the model's buffers."""
        return [b if b is None else b.detach().clone() for b in self.current()]

    def place(self, buffers: Sequence[Buffer]) -> None:
        """Give the model these buffers."""
        for (holder, name), buffer in zip(self._places, buffers, strict=True):
            holder[name] = buffer


class LocalReplicas:
    """Runs a model on all local replicas, one after another.

    The replicas share the weights. Each has its own buffers, and a stream of random
    numbers for each device iteration.
    """

    def __init__(
        self, settings: ReplicatedSettings, buffers: ReplicaBuffers, seed: int | None
    ) -> None:
        """Begin at the first iteration.

        Args:
            settings: The replicas and micro-batches.
            buffers: The buffers of the model.
            seed: The seed of the model; None for torch's, at the time of the first use.
        """
        self.settings, self.buffers, self._seed = settings, buffers, seed
        # How many device iterations have run.
        self._iterations = 0

    @property
    def random_state(self) -> list[int]:
        """The seed of the model, and how many iterations have run."""
        if self._seed is None:
            self._seed = torch.initial_seed()
        return [self._seed, self._iterations]

    @random_state.setter
    def random_state(self, numbers: list[int]) -> None:
        self._seed, self._iterations = numbers

    def run(self, call: ReplicatedCall, trainer: Trainer | None) -> None:
        """Run all micro-batches of one call, and leave torch's generator as it was.

        When training, the weights are updated once in each device iteration. All
        instances of the job must then make the same calls: an update blocks until the
        others reach it.
        """
        settings = self.settings
        first = 0 if trainer is None else trainer.members.first_replica
        with torch.random.fork_rng(()), torch.set_grad_enabled(trainer is not None):
            for iteration in range(settings.device_iterations):
                call.begin_iteration(iteration)
                if trainer is not None:
                    trainer.begin()
                self.buffers.prepare()
                for replica in range(settings.replicas):
                    seed_replica(first + replica, *self.random_state)
                    with self.buffers.of(replica):
                        for step in range(settings.gradient_accumulation):
                            call.run_micro_batch(iteration, step, replica)
                    if trainer is not None:
                        trainer.after_replica(replica)
                if trainer is not None:
                    trainer.update_weights()
                self._iterations += 1
                call.end_iteration(iteration)


def seed_replica(replica: int, seed: int, iteration: int) -> None:
    """Seed torch's generator for a replica of the job in one iteration."""
    torch.default_generator.manual_seed(seed_of(seed, replica, iteration))
