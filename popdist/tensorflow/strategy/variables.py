"""Variables of PopDistStrategy. Reads outside of replicas do not communicate.

Replicas write to their own parts of a variable. The values are aggregated at the end of
the run, or when all replicas read the aggregate before that. A read outside of replicas
returns the last aggregate, so one instance may make it alone. In graphs of sessions,
where no run has an end, the read is a collective.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, values
from tensorflow.python.distribute.values_util import (
    in_replica_update_context,
    is_saving_non_distributed,
)
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from popdist.tensorflow.tensors.memory import Tensor

_SUM = tf.VariableAggregation.SUM
_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
_AGGREGATED = (_SUM, tf.VariableAggregation.MEAN, _FIRST)


class IPUMirroredVariable(values.MirroredVariable):
    """A variable that is the same on all replicas.

    If replicas write to it without an aggregation, as BatchNormalization does to its
    statistics, it becomes the mean of their values. Integers stay apart, such as the
    states of random generators.
    """

    @property
    def is_counter(self) -> bool:
        """Whether it counts steps, as iterations of optimizers do."""
        is_first = self.aggregation == _FIRST
        return is_first and self.dtype.is_integer and self.shape.rank == 0

    @property
    def reduce_op(self) -> Any:
        """How the values are aggregated; None for the first replica's value."""
        return None if self.is_counter else tf.distribute.ReduceOp.MEAN

    def _update(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        _check_strategy(self)
        return super()._update(update_fn, value, **kwargs)

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        is_mean = self.aggregation is tf.VariableAggregation.NONE
        # A number of the program is the same on all instances.
        is_counted = self.is_counter and tf.is_tensor(value)
        if is_counted or (is_mean and self.dtype.is_floating):
            self.distribute_strategy.extended.record_write(self)
        return super()._update_replica(update_fn, value, **kwargs)

    def set_aggregate(self, value: Tensor) -> None:
        """Give the local replicas the aggregate of all replicas."""
        for variable in self.values:
            variable.assign(value)


class IPUSyncOnReadVariable(values.SyncOnReadVariable):
    """A variable with a separate value on each replica, as metrics have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The sum over all replicas, or the value of the first one. A mean is given to
        # all of them instead. Any, because TensorFlow declares no types.
        self._aggregate: Any = None
        if tf.executing_eagerly():
            self._make_aggregate()

    @property
    def reduce_op(self) -> Any:
        """How the values are aggregated; None for the first replica's value."""
        if self._aggregation == _FIRST:
            return None
        return tf.distribute.ReduceOp.from_variable_aggregation(self._aggregation)

    def set_aggregate(self, value: Tensor) -> None:
        """Keep the aggregate of all replicas for reads outside of replicas."""
        if self._aggregation in (_SUM, _FIRST):
            self._make_aggregate()
            self._aggregate.assign(value)
        else:
            for variable in self.values:
                variable.assign(value)

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assign a value; outside of replicas, the aggregate of all of them."""
        _check_strategy(self)
        result = super().assign(value, *args, **kwargs)
        is_outside = (
            distribute_lib.in_cross_replica_context()
            or distribute_lib.get_replica_context().strategy
            is not self.distribute_strategy
        )
        is_update = in_replica_update_context()
        if self._aggregate is not None and is_outside and not is_update:
            self._aggregate.assign(value)
        return result

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Add to the value of a replica."""
        _check_strategy(self)
        return super().assign_add(value, *args, **kwargs)

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtract from the value of a replica."""
        _check_strategy(self)
        return super().assign_sub(value, *args, **kwargs)

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        if self._aggregation in _AGGREGATED:
            self.distribute_strategy.extended.record_write(self)
        return super()._update_replica(update_fn, value, **kwargs)

    def _get_cross_replica(self) -> Tensor:
        in_session = not tf.compat.v1.executing_eagerly_outside_functions()
        if in_session or is_saving_non_distributed():
            return super()._get_cross_replica()
        self.distribute_strategy.extended.aggregate_within_run(self)
        if self._aggregate is not None:
            return self._aggregate.read_value()
        return self._get_replica(0).read_value()

    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        saveables = super()._gather_saveables_for_checkpoint()
        return {
            key: lambda name=self._common_name: _Saveable(self, name)
            for key in saveables
        }

    def _make_aggregate(self) -> None:
        if self._aggregate is not None or self._aggregation not in (_SUM, _FIRST):
            return
        with tf.init_scope(), tf.device(self._primary.device):
            value = self._primary.read_value()
            if self._aggregation == _SUM:
                replicas = self.distribute_strategy.num_replicas_in_sync
                value *= tf.cast(replicas, self.dtype)
            self._aggregate = ResourceVariable(
                value, trainable=False, name=f"{self._common_name}/aggregate"
            )


def _check_strategy(variable: Any) -> None:
    own = variable.distribute_strategy
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not own:
        raise RuntimeError(
            f"The variable {variable.name} belongs to another strategy than the one in "
            "use here, and two cannot be mixed. Make one PopDistStrategy, and make the "
            "model and the optimizer in its scope."
        )


# Any: TensorFlow has no public class for it.
_OnReadSaveable: Any = values._SyncOnReadSaveable


class _Saveable(_OnReadSaveable):
    """Restores the aggregate with the replicas' values."""

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        restored = super().restore(restored_tensors, restored_shapes)
        variable = self._sync_on_read_variable
        if variable._aggregate is None:
            return restored
        return tf.group(restored, variable._aggregate.assign(restored_tensors[0]))


VARIABLE_CLASSES = {
    "VariableClass": values.DistributedVariable,
    tf.VariableSynchronization.ON_WRITE: IPUMirroredVariable,
    tf.VariableSynchronization.ON_READ: IPUSyncOnReadVariable,
}
