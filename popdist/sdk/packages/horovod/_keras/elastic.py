"""Horovod's elastic callbacks and state, without the base class of either Keras."""

from collections.abc import Mapping
from typing import Any

from ..common.elastic import State
from ..tensorflow.elastic import TensorFlowKerasState

# Any: numbers.
Logs = Mapping[str, Any] | None


class KerasState(TensorFlowKerasState):
    """The state of a training with either Keras: model, optimizer, other objects."""


class _CommitState:
    """Commits a state after so many batches, and after each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """Count batches from here: all ranks begin at the same time."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Commit the state, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commit the state."""
        self.state.commit()


class _UpdateBatchState:
    """Has the number of the batch in the state's attribute `batch`."""

    # Keras's callbacks have it.
    params: dict[str, Any]

    # Any: a State with the attribute.
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Take the number of steps anew."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Count only the remaining steps of an interrupted epoch."""
        if self.params.get("steps"):
            self.steps_per_epoch = self.steps_per_epoch or self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Take note of the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Begin to count again."""
        self.state.batch = 0


class _UpdateEpochState:
    """Has the number of epochs, over all changes of ranks, in the attribute `epoch`."""

    # Any: a State with the attribute.
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """Take note of the epochs before: Keras counts from 0."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Take note of the next epoch: a change of ranks does not repeat this one."""
        self.state.epoch = self.initial_epoch + epoch + 1


# The parts of Horovod's callbacks, in the order of their names.
PARTS = (_CommitState, _UpdateBatchState, _UpdateEpochState)
