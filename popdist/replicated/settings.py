"""The number of micro-batches in one call of a model, and each replica's share."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicatedSettings:
    """The settings of a model that runs on replicas of several instances."""

    device_iterations: int = 1
    gradient_accumulation: int = 1
    # Local replicas, and how many of them share a micro-batch.
    replicas: int = 1
    input_group_size: int = 1
    consecutive_groups: bool = True
    # Over how many instances gradients are reduced, and which of them this is.
    instances: int = 1
    instance: int = 0
    mean: bool = True

    @property
    def input_groups(self) -> int:
        """How many micro-batches the local replicas run at once."""
        return self.replicas // self.input_group_size

    @property
    def micro_batches(self) -> int:
        """How many micro-batches the inputs of one call hold."""
        return self.batches_per_replica * self.input_groups

    @property
    def batches_per_replica(self) -> int:
        """How many micro-batches each local replica runs in one call."""
        return self.device_iterations * self.gradient_accumulation

    def batch_number(self, iteration: int, step: int) -> int:
        """Return the number of a replica's micro-batch in a call."""
        return iteration * self.gradient_accumulation + step

    def returned_place(
        self, mode: str, period: int, iteration: int, step: int
    ) -> int | None:
        """Return the place of a replica's micro-batch among those that a call returns.

        It is None for a micro-batch that is not returned. All micro-batches of `Sum`
        have the place 0.

        Args:
            mode: All, EveryN, Final or Sum, by PopART's names.
            period: The N of EveryN.
            iteration: The device iteration.
            step: The step of the gradient accumulation in it.
        """
        number = self.batch_number(iteration, step)
        if mode in ("Final", "Sum"):
            last = number + 1 == self.batches_per_replica
            return 0 if last or mode == "Sum" else None
        period = period if mode == "EveryN" else 1
        return None if (number + 1) % period else number // period

    def input_group(self, replica: int) -> int:
        """Return which of the micro-batches run at once a local replica gets."""
        if self.consecutive_groups:
            return replica // self.input_group_size
        return replica % self.input_groups

    def micro_batch_index(self, iteration: int, step: int, replica: int) -> int:
        """Return which of the micro-batches of one call a local replica gets.

        Args:
            iteration: The device iteration.
            step: The step of the gradient accumulation in it.
            replica: The local replica.
        """
        number = self.batch_number(iteration, step)
        return number * self.input_groups + self.input_group(replica)
