"""Reductions and gathers of the replicas' tensors, as tf.distribute requests them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedValues, Mirrored

from popdist.engine.calls.rows import Array
from popdist.tensorflow.strategy.exchange import Exchange, ExchangeCall
from popdist.tensorflow.tensors.memory import Tensor
from popdist.tensorflow.tensors.operation import call_by_name, call_in_order

# A value of tf.distribute: a tensor, or one for each local replica.
Value = Any


class EngineCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """Carries values of all replicas of the job by popdist's engine alone."""

    def __init__(self, exchange: Exchange, replicas: int) -> None:
        """Make one.

        Args:
            replicas: The number of local replicas.
        """
        super().__init__()
        self._exchange = exchange
        self._replicas = replicas

    @property
    def _num_between_graph_workers(self) -> int:
        # The base would return values as they are where there is one.
        return max(2, self._exchange.instances.size)

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Value, destinations: Any, options: Any
    ) -> Value:
        """Return the reduction of one value."""
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self,
        reduce_op: Any,
        value_destination_pairs: Sequence[tuple[Value, Any]],
        options: Any,
    ) -> list[Value]:
        """Return the reductions of several values, of which tensors share one call."""
        values = [self._tensors_of(value) for value, _ in value_destination_pairs]
        results = self.reduce_tensors(reduce_op, values)
        pairs = zip(results, value_destination_pairs, strict=True)
        return [self._at(result, to) for result, (_, to) in pairs]

    def reduce_tensors(
        self, reduce_op: Any, values: Sequence[Sequence[Tensor]]
    ) -> list[Tensor]:
        """Return the reduction of each value over all replicas.

        Args:
            values: Of each the tensors of the local replicas.

        Raises:
            ValueError: The operation is neither SUM nor MEAN.
        """
        if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
            raise ValueError(
                f"Unsupported reduce op: {reduce_op}. Ask for "
                "tf.distribute.ReduceOp.SUM or MEAN."
            )
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        sums: dict[int, Sequence[Tensor]] = {}
        means: dict[int, Sequence[Tensor]] = {}
        results: dict[int, Tensor] = {}
        for index, tensors in enumerate(values):
            if isinstance(tensors[0], tf.IndexedSlices):
                results[index] = self._add_sparse(tensors)
            else:
                exact = is_mean and tensors[0].dtype.is_floating
                (means if exact else sums)[index] = tensors
        results |= zip(sums, self._reduce_dense([*sums.values()], "sum"), strict=True)
        if is_mean:
            replicas = self._exchange.replicas.num_replicas
            results = {i: _divided(total, replicas) for i, total in results.items()}
        results |= zip(
            means, self._reduce_dense([*means.values()], "mean"), strict=True
        )
        return [results[index] for index in range(len(values))]

    def gather_tensors(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Return the tensors of all replicas, one behind the other along an axis."""
        shape = tensors[0].shape.as_list()
        shape[axis] = None

        def gather(exchange: Exchange, arrays: Sequence[Array]) -> list[Array]:
            return [exchange.all_gather(arrays, axis)]

        spec = tf.TensorSpec(shape, tensors[0].dtype)
        return self.call("gather", gather, tensors, [spec])[0]

    def from_first_instance(self, tensor: Tensor) -> Tensor:
        """Return the tensor of instance 0."""

        def share(exchange: Exchange, arrays: Sequence[Array]) -> list[Array]:
            return [exchange.from_first_instance(arrays[0])]

        spec = tf.TensorSpec(tensor.shape, tensor.dtype)
        return self.call("broadcast", share, [tensor], [spec])[0]

    def call(
        self,
        what: str,
        call: ExchangeCall,
        tensors: Sequence[Tensor],
        specs: Sequence[tf.TensorSpec],
    ) -> list[Tensor]:
        """Return the tensors that a call of the exchange makes of tensors.

        The graphs of sessions know no order, so that calls have names there.
        """
        if tf.compat.v1.executing_eagerly_outside_functions():
            function = partial(call, self._exchange)
            return call_in_order(function, tensors, specs)
        name = tf.compat.v1.get_default_graph().unique_name(f"PopDistStrategy_{what}")
        begin = partial(self._exchange.request, name, call)
        return call_by_name(begin, tensors, specs)

    def _gather_implementation(
        self, per_replica_value: Value, destinations: Any, axis: int, options: Any
    ) -> Value:
        tensors = self._tensors_of(per_replica_value)
        return self._at(self.gather_tensors(tensors, axis), destinations)

    def _at(self, value: Value, destinations: Any) -> Value:
        """Return a value on the devices where it is wanted."""
        # With one local replica there is one device, and no need of a copy.
        if self._replicas == 1:
            return Mirrored((value,))
        return self.broadcast(value, destinations)

    def _reduce_dense(
        self, values: Sequence[Sequence[Tensor]], op: str
    ) -> list[Tensor]:
        if not values:
            return []
        replicas = self._replicas

        def reduce(exchange: Exchange, arrays: Sequence[Array]) -> list[Array]:
            begins = range(0, len(arrays), replicas)
            tensors = [arrays[begin : begin + replicas] for begin in begins]
            return exchange.all_reduce(tensors, op)

        flat = [tensor for tensors in values for tensor in tensors]
        specs = [tf.TensorSpec(value[0].shape, value[0].dtype) for value in values]
        return self.call("reduce", reduce, flat, specs)

    def _add_sparse(self, slices: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
        """Return the sum of sparse tensors: the rows of all of them."""
        first = slices[0]
        return tf.IndexedSlices(
            self.gather_tensors([each.values for each in slices], 0),
            self.gather_tensors([each.indices for each in slices], 0),
            first.dense_shape,
        )

    def _tensors_of(self, value: Value) -> list[Tensor]:
        """Return what each local replica has of a value."""
        tensors = value.values if isinstance(value, DistributedValues) else (value,)
        # One that is the same object on all local replicas is given once.
        if len(tensors) < self._replicas:
            tensors = tensors[:1] * self._replicas
        return [
            each if isinstance(each, tf.IndexedSlices) else tf.convert_to_tensor(each)
            for each in tensors
        ]


def _divided(total: Tensor, replicas: int) -> Tensor:
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(
            total.values / replicas, total.indices, total.dense_shape
        )
    return total / tf.cast(replicas, total.dtype)
