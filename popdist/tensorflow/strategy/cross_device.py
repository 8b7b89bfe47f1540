"""Reductions and gathers of the replicas' tensors, as tf.distribute requests them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.values import DistributedValues, Mirrored
from tensorflow.python.ops.control_flow_util import GetContainingWhileContext

from popdist.engine.calls.array_rows import Array
from popdist.tensorflow.strategy.exchange import Exchange, ExchangeCall
from popdist.tensorflow.tensors.memory import Tensor
from popdist.tensorflow.tensors.operation import (
    call_by_name,
    call_in_order,
    check_dtypes,
    unique_name,
)
from popdist.tensorflow.tensors.reduction import reduce_in_graph

# The dtype in which bools are reduced.
_BYTE = tf.uint8
_FLAG = np.dtype(np.uint8)
_FLAG_SPEC = tf.TensorSpec((), _BYTE)

# A value of tf.distribute: a tensor, or one for each local replica.
Value = Any


class EngineCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """Carries values of all replicas of the job by popdist's engine alone."""

    def __init__(self, exchange: Exchange, devices: Sequence[str]) -> None:
        """Make one.

        Args:
            devices: The device of each local replica.
        """
        super().__init__()
        self._exchange = exchange
        self._devices = devices
        self._replicas = len(devices)

    def reduce_to(
        self, reduce_op: Any, pairs: Sequence[tuple[Value, Any]]
    ) -> list[Value]:
        """Return the reductions of several values, in one call.

        Args:
            pairs: Each value, and where it is wanted.
        """
        values = [self.tensors_of(value) for value, _ in pairs]
        spread = any(self._is_everywhere(to) for _, to in pairs)
        results = self.reduce_tensors(reduce_op, values, spread)
        return [
            self._at(copies, to) for copies, (_, to) in zip(results, pairs, strict=True)
        ]

    @tf.autograph.experimental.do_not_convert
    def reduce_tensors(
        self,
        reduce_op: Any,
        values: Sequence[Sequence[Tensor]],
        spread: bool = False,
    ) -> list[list[Tensor]]:
        """Return copies of the reduction of each value over all replicas.

        Args:
            values: The tensors of the local replicas, for each value.
            spread: Return a copy on each local replica's device if that costs less than
                copying it later; else one alone.

        Raises:
            ValueError: The operation is neither SUM nor MEAN.
        """
        if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
            raise ValueError(
                f"Unsupported reduce op: {reduce_op}. Ask for "
                "tf.distribute.ReduceOp.SUM or MEAN."
            )
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        kinds: dict[str, dict[int, Any]] = {"sparse": {}, "sum": {}, "mean": {}}
        for index, tensors in enumerate(values):
            if isinstance(tensors[0], tf.IndexedSlices):
                kind = "sparse"
            else:
                kind = "mean" if is_mean and tensors[0].dtype.is_floating else "sum"
            kinds[kind][index] = tensors
        results: dict[int, list[Tensor]] = {}
        for kind, of_kind in kinds.items():
            several = [*of_kind.values()]
            if kind == "sparse":
                reduced = [[each] for each in self._add_sparse(several)]
            else:
                reduced = self._reduce_dense(several, kind, spread)
            if is_mean and kind != "mean":
                replicas = self._exchange.replicas.num_replicas
                reduced = [[_divided(x, replicas) for x in each] for each in reduced]
            results |= zip(of_kind, reduced, strict=True)
        return [results[index] for index in range(len(values))]

    def from_first_instance(self, tensor: Tensor) -> Tensor:
        """Return the tensor of instance 0, which may be a sparse one."""
        if isinstance(tensor, tf.IndexedSlices):
            rows = [tensor.values, tensor.indices]
            specs = [tf.TensorSpec([None, *r.shape[1:]], r.dtype) for r in rows]
            first = self.call("first", _parts_of_first, rows, specs)
            return tf.IndexedSlices(*first, tensor.dense_shape)
        tensor = tf.convert_to_tensor(tensor)
        spec = tf.TensorSpec(tensor.shape, tensor.dtype)
        return self.call("broadcast", Exchange.from_first_instance, [tensor], [spec])[0]

    def true_on_all(self, flag: Tensor) -> Tensor:
        """Return whether a tensor, which is a bool, is true on all instances."""
        number = tf.cast(flag, _BYTE)
        if _reduces_in_graph():
            reduce = self._exchange.reduction([_FLAG], "min", of_instances=True)
            device = self._devices[:1]
            ((smallest,),) = reduce_in_graph(reduce, [[number]], device, False)
        else:
            (smallest,) = self.call("agree", _smallest, [number], [_FLAG_SPEC])
        return tf.cast(smallest, tf.bool)

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
        name = unique_name(f"PopDistStrategy_{what}")
        function = partial(self._exchange.call_by_name, name, call)
        return call_by_name(function, tensors, specs)

    def _gather_all(
        self, values: Sequence[Sequence[Tensor]], axis: int
    ) -> list[Tensor]:
        """Return several values, each gathered along an axis, in one call."""
        replicas = self._replicas

        def gather(exchange: Exchange, arrays: Sequence[Array]) -> list[Array]:
            begins = range(0, len(arrays), replicas)
            parts = [arrays[begin : begin + replicas] for begin in begins]
            return [exchange.all_gather(each, axis) for each in parts]

        specs = []
        for tensors in values:
            shape = tensors[0].shape
            if shape.rank is not None:
                shape = _with_any_length(shape, axis)
            specs.append(tf.TensorSpec(shape, tensors[0].dtype))
        flat = [tensor for tensors in values for tensor in tensors]
        return self.call("gather", gather, flat, specs)

    def gather_to(self, value: Value, destinations: Any, axis: int) -> Value:
        """Return the tensors of all replicas, one behind the other, where wanted."""
        return self._at(self._gather_all([self.tensors_of(value)], axis), destinations)

    def _is_everywhere(self, destinations: Any) -> bool:
        """Return whether all local replicas' devices are wanted."""
        is_distributed = isinstance(destinations, DistributedValues)
        return is_distributed and len(destinations.values) == self._replicas

    def _at(self, copies: Sequence[Tensor], destinations: Any) -> Value:
        """Return a value on the devices where it is wanted.

        Args:
            copies: The value, once or on each local replica's device.
        """
        # With one local replica there is one device, and no need of a copy.
        if len(copies) == self._replicas and (
            self._replicas == 1 or self._is_everywhere(destinations)
        ):
            return Mirrored(tuple(copies))
        return self.broadcast(copies[0], destinations)

    def _reduce_dense(
        self, values: Sequence[Sequence[Tensor]], op: str, spread: bool
    ) -> list[list[Tensor]]:
        """Return copies of the reduction of each value, which is a dense one."""
        if not values:
            return []
        if not _reduces_in_graph():
            return [[total] for total in self._reduce_by_function(values, op)]
        # The parts of a complex number are two real ones.
        dtypes = [
            np.dtype(dtype.real_dtype.as_numpy_dtype)
            for dtype in dict.fromkeys(tensors[0].dtype for tensors in values)
        ]
        reduce = self._exchange.reduction(dtypes, op)
        return reduce_in_graph(reduce, values, self._devices, spread)

    def _reduce_by_function(
        self, values: Sequence[Sequence[Tensor]], op: str
    ) -> list[Tensor]:
        replicas = self._replicas

        def reduce(exchange: Exchange, arrays: Sequence[Array]) -> list[Array]:
            begins = range(0, len(arrays), replicas)
            tensors = [arrays[begin : begin + replicas] for begin in begins]
            return exchange.all_reduce(tensors, op)

        flat = [tensor for tensors in values for tensor in tensors]
        specs = [tf.TensorSpec(value[0].shape, value[0].dtype) for value in values]
        return self.call("reduce", reduce, flat, specs)

    def _add_sparse(
        self, values: Sequence[Sequence[tf.IndexedSlices]]
    ) -> list[tf.IndexedSlices]:
        """Return the sum of each sparse value: the rows of all replicas."""
        parts: list[list[Tensor]] = []
        for slices in values:
            parts.append([each.values for each in slices])
            parts.append([each.indices for each in slices])
        gathered = self._gather_all(parts, 0) if parts else []
        pairs = zip(gathered[::2], gathered[1::2], values, strict=True)
        return [
            tf.IndexedSlices(rows, indices, slices[0].dense_shape)
            for rows, indices, slices in pairs
        ]

    def tensors_of(self, value: Value) -> list[Tensor]:
        """Return the tensor of each local replica of a value."""
        tensors = value.values if isinstance(value, DistributedValues) else (value,)
        # One that is the same object on all local replicas is given once.
        if len(tensors) < self._replicas:
            tensors = tensors[:1] * self._replicas
        converted = [
            each if isinstance(each, tf.IndexedSlices) else tf.convert_to_tensor(each)
            for each in tensors
        ]
        check_dtypes(converted)
        _check_loops(converted)
        return converted


def _check_loops(tensors: Sequence[Tensor]) -> None:
    """Raise NotImplementedError where each local replica's tensor is in its own loop.

    No operation of a session's graph can take tensors of two loops.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return
    contexts = [tensor.op._get_control_flow_context() for tensor in tensors]
    # None is outside of all loops, from where each of them can take a tensor.
    loops = {id(loop) for loop in map(GetContainingWhileContext, contexts) if loop}
    if len(loops) > 1:
        raise NotImplementedError(
            f"The {len(tensors)} local replicas call a collective in a while loop of "
            "strategy.run's function, each in a loop of its own, and a session's graph "
            "cannot connect two loops. Make the loop by ipu.loops.while_loop of "
            "tensorflow.python.ipu, call strategy.run in the body of one loop, or "
            "start an instance for each replica (poprun --num-instances)."
        )


def _reduces_in_graph() -> bool:
    """Return whether popdist's operations reduce tensors here: in a tf.function."""
    return not tf.executing_eagerly() and bool(
        tf.compat.v1.executing_eagerly_outside_functions()
    )


def _with_any_length(shape: tf.TensorShape, axis: int) -> tf.TensorShape:
    """Return a shape with an unknown length along an axis."""
    lengths = shape.as_list()
    if not -len(lengths) <= axis < len(lengths):
        raise ValueError(
            f"The axis is {axis}, but tensors of the shape {shape} that are gathered "
            f"have {len(lengths)}. tf.expand_dims adds one."
        )
    lengths[axis] = None
    return tf.TensorShape(lengths)


def _parts_of_first(exchange: Exchange, arrays: Sequence[Array]) -> list[Array]:
    return [exchange.instances.all_gather(array)[0] for array in arrays]


def _smallest(exchange: Exchange, flags: Sequence[Array]) -> list[Array]:
    return [exchange.instances.all_reduce(flags[0], "min")]


def _divided(total: Tensor, replicas: int) -> Tensor:
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(
            total.values / replicas, total.indices, total.dense_shape
        )
    return total / tf.cast(replicas, total.dtype)
