"""Horovod's callbacks, without the base class of either Keras."""

import warnings
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from popdist.negotiation.call_requests import Kind

from ..common.calls.objects import ARRAY_CALLS
from ..common.calls.submission import BASICS, CallArguments
from ..common.process_sets import ProcessSet, global_process_set
from ..tensorflow.functions import broadcast_variables
from ..tensorflow.gradient_reduction import Variable, key_of
from .functions import broadcast_global_variables

# The logs that Keras hands to callbacks. They write to them. Any: numbers.
Logs = MutableMapping[str, Any] | None


class _BroadcastGlobalVariables:
    """Overwrites the variables of model and optimizer by one rank's, once.

    It does so after the first batch, because an optimizer has no variables before.
    """

    # Keras's callbacks have them.
    model: Any

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Any = None
    ) -> None:
        """Make a callback.

        Args:
            root_rank: The rank that sends its variables to all others.
            device: Has no effect.
            local_variables: A variable of the model that each rank has for itself, or
                several of them.
        """
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local: set[Hashable] = set()
        if isinstance(local_variables, tf.Variable) or hasattr(local_variables, "path"):
            local_variables = [local_variables]
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Variable) -> None:
        """Leave a variable of the model as it is on each rank."""
        self._local.add(key_of(var))

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Broadcast the variables, after the first batch."""
        if self.broadcast_done:
            return
        self.broadcast_done = True
        if not tf.executing_eagerly():
            broadcast_global_variables(self.root_rank)
            return
        variables = self.model.optimizer.variables
        states = variables() if callable(variables) else variables
        shared = [
            each for each in self.model.weights if key_of(each) not in self._local
        ]
        broadcast_variables([*shared, *states], self.root_rank)


class _MetricAverage:
    """Averages the metrics of an epoch over the ranks, for the callbacks after it."""

    def __init__(
        self, device: str = "", process_set: ProcessSet = global_process_set
    ) -> None:
        """Make a callback; the device has no effect."""
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Replace the metrics by their averages."""
        if not logs:
            return
        names = sorted(logs)
        values = [np.asarray(logs[name], np.float64) for name in names]
        average = CallArguments(
            Kind.ALLREDUCE, "MetricAverageCallback", self.process_set
        )
        averages = ARRAY_CALLS.begin(average, values, now=True).wait()
        for name, average in zip(names, averages, strict=True):
            logs[name] = average[()]


class _LearningRateSchedule:
    """Multiplies the learning rate by a function of the epoch."""

    # Keras's callbacks have them.
    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Make a callback.

        Args:
            initial_lr: The learning rate that is multiplied.
            multiplier: A function of the epoch, or the base of a power of the epoch.
            start_epoch: The first epoch in which the learning rate is set.
            end_epoch: The first one in which it is not any more; None for no end.
            staircase: Set it once an epoch; if not, for each batch.
            momentum_correction: Correct the momentum of an optimizer that has it in a
                variable, such as the optimizers of tf_keras.optimizers.legacy.
            steps_per_epoch: How many batches an epoch has, if Keras does not know.

        Raises:
            ValueError: There is no initial learning rate.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError(
                "initial_lr is None, but the learning rate is a multiple of it. Give "
                "the optimizer's."
            )
        self.initial_lr = initial_lr
        self.multiplier = multiplier
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._kept_momentum: float | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Find out how many batches an epoch has.

        Raises:
            ValueError: Keras does not know, and each batch has a learning rate.
        """
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__} must know how many batches an epoch has. Give "
                "steps_per_epoch."
            )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Take note of the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Set the learning rate, if it changes before this batch."""
        epoch = self.current_epoch
        if epoch < self.start_epoch:
            return
        if self.end_epoch is not None and epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._set_rate(epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._set_rate(epoch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Restore the momentum that was corrected for this batch."""
        if self._kept_momentum is not None:
            self.model.optimizer.momentum = self._kept_momentum
            self._kept_momentum = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Log the learning rate."""
        if logs is not None:
            logs["lr"] = _number(self.model.optimizer.learning_rate)

    def factor(self, epoch: float) -> float:
        """Return what the initial learning rate is multiplied with in an epoch."""
        if callable(self.multiplier):
            return self.multiplier(epoch)
        power: float = self.multiplier**epoch
        return power

    def _set_rate(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        earlier = _number(optimizer.learning_rate)
        rate = self.initial_lr * self.factor(epoch)
        optimizer.learning_rate = rate
        momentum = getattr(optimizer, "momentum", None)
        if not self.momentum_correction or momentum is None or not earlier:
            return
        if hasattr(momentum, "assign"):
            self._kept_momentum = _number(momentum)
            optimizer.momentum = self._kept_momentum * rate / earlier
        elif momentum and rate != earlier:
            warnings.warn(
                "The momentum is not corrected, because this optimizer has it as a "
                "constant of its compiled step. Give momentum_correction=False, or an "
                "optimizer of tf_keras.optimizers.legacy.",
                stacklevel=2,
            )


class _LearningRateWarmup(_LearningRateSchedule):
    """Raises the learning rate from one rank's to that of all ranks, over epochs."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Make a callback.

        Args:
            initial_lr: The learning rate after it, as a rule one rank's times the
                number of ranks.
            warmup_epochs: In how many epochs it is reached.
            momentum_correction: See LearningRateScheduleCallback.
            steps_per_epoch: See LearningRateScheduleCallback.
            verbose: Let rank 0 print that it is reached.
        """
        super().__init__(
            initial_lr,
            self._share_of_ranks,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Log the learning rate, and print it after the last epoch."""
        super().on_epoch_end(epoch, logs)
        last = epoch == self.warmup_epochs - 1
        if last and self.verbose > 0 and BASICS.rank() == 0:
            rate = _number(self.model.optimizer.learning_rate)
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to "
                f"{rate:g}."
            )

    def _share_of_ranks(self, epoch: float) -> float:
        # The last batch of an epoch has the learning rate of its end.
        reached = epoch + 1 / (self.steps_per_epoch or 1)
        size = BASICS.size()
        return (reached * (size - 1) / self.warmup_epochs + 1) / size


# The parts of Horovod's callbacks, in the order of their names.
PARTS = (
    _BroadcastGlobalVariables,
    _LearningRateSchedule,
    _LearningRateWarmup,
    _MetricAverage,
)


def of_keras(
    parts: Sequence[type[Any]], base: type[Any], module: str
) -> list[type[Any]]:
    """Return callbacks as subclasses of the class of callbacks of a Keras.

    Args:
        parts: The callbacks without their base class, with names that begin with an
            underscore.
        base: The class of callbacks.
        module: The module that contains them by their names, as pickle needs it.
    """
    return [
        type(
            f"{part.__name__[1:]}Callback",
            (part, base),
            {"__doc__": part.__doc__, "__module__": module},
        )
        for part in parts
    ]


# Any: a number, or a variable of either Keras.
def _number(value: Any) -> float:
    if tf.executing_eagerly():
        return float(value)
    rate: float = tf.compat.v1.keras.backend.get_value(value)
    return float(rate)
