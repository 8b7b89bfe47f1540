"""The loop of one call of a replicated model, the same in all frameworks."""

from typing import Protocol, TypeVar

from popdist.replicated.buffers import ReplicaBuffers
from popdist.replicated.seeds import ReplicaStreams
from popdist.replicated.settings import ReplicatedSettings

T = TypeVar("T")


class Model(Protocol):
    """A framework's model with the inputs and outputs of one call."""

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


class Training(Protocol):
    """The gradients of a model, and the update of its weights."""

    def begin(self) -> None:
        """Forget the gradients of the last update."""

    def after_replica(self, replica: int) -> None:
        """Add the gradients of all micro-batches of a local replica."""

    def update_weights(self) -> None:
        """Reduce the gradients over all replicas of the job, and update once."""


def run_replicas(
    settings: ReplicatedSettings,
    buffers: ReplicaBuffers[T],
    streams: ReplicaStreams,
    model: Model,
    training: Training | None,
) -> None:
    """Run all micro-batches of one call, on one local replica after another.

    The replicas share the weights. Each has its own buffers and random numbers. When
    training, the weights are updated once in each device iteration. All instances of
    the job must then make the same calls: an update blocks until the others reach it.
    """
    for iteration in range(settings.device_iterations):
        model.begin_iteration(iteration)
        if training is not None:
            training.begin()
        buffers.prepare()
        for replica in range(settings.replicas):
            streams.begin(replica)
            with buffers.of(replica):
                for step in range(settings.gradient_accumulation):
                    model.run_micro_batch(iteration, step, replica)
            if training is not None:
                training.after_replica(replica)
        if training is not None:
            training.update_weights()
        streams.iterations += 1
        model.end_iteration(iteration)
