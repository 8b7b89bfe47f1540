"""The methods that tf.distribute calls, for replicas of several instances."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils, input_util
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.distribute.v1 import input_lib as input_lib_v1
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.trackable.base import CheckpointInitialValue

from popdist.replicated.members import Members
from popdist.session import STATE
from popdist.tensorflow.extending import extends
from popdist.tensorflow.strategy.aggregation import (
    bytes_of_tensor,
    tensor_of_bytes,
    tensors_in,
    widened,
)
from popdist.tensorflow.strategy.cross_device import EngineCrossDeviceOps, Value
from popdist.tensorflow.strategy.datasets import even_steps
from popdist.tensorflow.strategy.keras_logs import (
    REDUCTION,
    logs_in,
    logs_of_sums,
    summands_of,
    with_logs,
)
from popdist.tensorflow.strategy.random_state import own_seed, use_generators
from popdist.tensorflow.strategy.same_data import is_compared, warn_of_same_data
from popdist.tensorflow.strategy.summaries import meet_writers
from popdist.tensorflow.strategy.variables import VARIABLE_CLASSES
from popdist.tensorflow.tensors.memory import Tensor


class PopDistExtended(MirroredExtended):
    """The local replicas are logical CPUs; all others are reached by the engine."""

    # STATE: whether a strategy of this process has a variable that is trained; None
    # before one of several replicas was made.
    trains: bool | None = None
    # STATE: how many runs of replicas this process has made or traced.
    runs = 0

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        devices: Sequence[str],
        members: Members,
        cross_device_ops: EngineCrossDeviceOps,
        adds_reductions: bool = True,
    ) -> None:
        """Make what the strategy works with.

        Args:
            devices: The device of each local replica.
            adds_reductions: Whether what replicas all-reduce in a run is reduced, as
                optimizers do with gradients; else each keeps its own.
        """
        self.members = members
        self._engine = cross_device_ops
        # Programs and tests for IPUs change it by this name.
        self._add_ipu_cross_replica_reductions = adds_reductions
        self._cluster_resolver = self._make_cluster_resolver()
        # Whether Keras is taught how many steps an epoch has, and other methods.
        self.extends_keras = True
        # Whether data sets are shared out among the instances.
        self.shards_datasets = False
        # Whether data that come are the first ones.
        self._compares_data = True
        # Whether a run is made or traced. Runs within it aggregate nothing. A run that
        # another thread of the program begins waits until this one has ended.
        self._running = False
        self._run_lock = RLock()
        # Results of merge_call in the run, which are equal on all replicas.
        self.merged: list[Any] = []
        # Variables that replicas have written since the last run ended, and the
        # variables that each traced function writes. The keys are their ids, because
        # variables have no hash.
        self._written: dict[int, Any] = {}
        self._written_by: weakref.WeakKeyDictionary[Any, dict[int, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._functions: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )
        if self._instances > 1:
            meet_writers(members)
        if members.replicas > 1 and PopDistExtended.trains is None:
            PopDistExtended.trains = False
        super().__init__(strategy, list(devices), cross_device_ops)
        use_generators()

    def _make_cluster_resolver(self) -> Any:
        # Its addresses are names alone: instances do not meet through TensorFlow.
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(
                {"worker": [f"instance-{rank}" for rank in range(self._instances)]}
            ),
            task_type="worker",
            task_id=self._rank,
        )

    def _scope(self, strategy: tf.distribute.Strategy) -> Any:
        if (
            tf.distribute.has_strategy()
            and tf.distribute.get_strategy() is not strategy
        ):
            raise RuntimeError(
                "Another strategy is in use here, and two cannot be mixed. Make one "
                "PopDistStrategy, and leave the scope of any other one before scope(), "
                "run() or reduce() of this one."
            )
        return super()._scope(strategy)

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.members.replicas

    @property
    def should_save_summary(self) -> bool:
        return self.members.first_replica == 0

    @property
    def should_checkpoint(self) -> bool:
        return self.members.first_replica == 0

    @property
    def _global_batch_size(self) -> bool:
        return False

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.members.first_replica + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.members.first_replica

    def _reduce_to(
        self, reduce_op: Any, value: Value, destinations: Any, options: Any
    ) -> Value:
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        results = dict(enumerate(tf.nest.flatten(value)))
        pairs = {
            index: (each, destinations)
            for index, each in results.items()
            # The mean of equal values is the value itself.
            if not (is_mean and distribute_utils.is_mirrored(each))
        }
        reduced = self._engine.reduce_to(reduce_op, [*pairs.values()])
        results |= zip(pairs, reduced, strict=True)
        return tf.nest.pack_sequence_as(value, [*results.values()])

    def _batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any
    ) -> list[Value]:
        pairs = list(value_destination_pairs)
        if self._running and not self._add_ipu_cross_replica_reductions:
            return [value for value, _ in pairs]
        return self._engine.reduce_to(reduce_op, pairs)

    def _broadcast_to(self, tensor: Value, destinations: Any) -> Value:
        # Variables that take the value of the first replica take it from instance 0.
        is_exchanged = self._instances > 1 and _is_exchanged(tensor)
        if is_exchanged and not self._is_aggregated_later(destinations):
            tensor = self._engine.from_first_instance(tensor)
        return super()._broadcast_to(tensor, destinations)

    def _is_aggregated_later(self, destinations: Any) -> bool:
        """Return whether a counter is written, which the end of the run aggregates.

        The counters of all instances are equal, unless a program changes them.
        """
        return (
            self._running
            and id(destinations) in self._written
            and getattr(destinations, "is_counter", False)
            and bool(tf.compat.v1.executing_eagerly_outside_functions())
        )

    def _gather_to_implementation(
        self, value: Value, destinations: Any, axis: int, options: Any
    ) -> Value:
        return self._engine.gather_to(value, destinations, axis)

    # --- Data.

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        self._check_input_options(options)
        if tf.executing_eagerly() and is_compared():
            self.compare_data(dataset)
        if self.shards_datasets:
            dataset = dataset.shard(self._instances, self._rank)
        (even,) = even_steps([dataset], self.members, len(self._devices))
        # Without a number of replicas, batches are not divided among them.
        return input_util.get_distributed_dataset(
            even,
            self._input_workers_with_options(options),
            self._container_strategy(),
            options=options,
        )

    def compare_data(self, data: Any) -> None:
        """Warn if all instances train on the same data. All must call this.

        Only the first data are compared: all instances may evaluate on the same data.
        """
        if self._compares_data:
            self._compares_data = False
            warn_of_same_data(self.members, None if self.shards_datasets else data)

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        return input_lib_v1.DatasetIterator(
            dataset, self._input_workers, self._container_strategy()
        )

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        workers = self._input_workers_with_options(options)
        # One for all local replicas, or one for each.
        pipelines = workers.num_workers
        contexts = self._input_contexts(pipelines)
        replicas = len(self._devices) // pipelines
        even = even_steps([*map(dataset_fn, contexts)], self.members, replicas)
        of_pipeline = {
            context.input_pipeline_id: data
            for context, data in zip(contexts, even, strict=True)
        }
        return input_util.get_distributed_datasets_from_function(
            lambda context: of_pipeline[context.input_pipeline_id],
            workers,
            contexts,
            self._container_strategy(),
            options,
        )

    def _make_input_fn_iterator(
        self, input_fn: Any, replication_mode: Any = None
    ) -> Any:
        return input_lib_v1.InputFunctionIterator(
            input_fn,
            self._input_workers,
            self._input_contexts(1),
            self._container_strategy(),
        )

    def _input_contexts(self, pipelines: int) -> list[tf.distribute.InputContext]:
        """Return the contexts for functions that make data sets of this instance."""
        return [
            tf.distribute.InputContext(
                num_input_pipelines=self._instances * pipelines,
                input_pipeline_id=self._rank * pipelines + pipeline,
                num_replicas_in_sync=self._num_replicas_in_sync,
            )
            for pipeline in range(pipelines)
        ]

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        first = self.members.first_replica
        contexts = [
            tf.distribute.experimental.ValueContext(
                first + local, self._num_replicas_in_sync
            )
            for local in range(len(self._devices))
        ]
        return distribute_utils.regroup(
            [value_fn(context) for context in contexts], always_wrap=True
        )

    def true_on_all(self, flag: Tensor) -> Tensor:
        """Return whether a tensor is true on all instances, which all must ask."""
        return self._engine.true_on_all(flag) if self._instances > 1 else flag

    # --- Variables.

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        is_on_read = kwargs.get("synchronization") is tf.VariableSynchronization.ON_READ
        # TensorFlow has None for trained variables, unless they are aggregated on
        # reads.
        if kwargs.get("trainable") is not False and not is_on_read:
            PopDistExtended.trains = True
        return super()._create_variable(next_creator, **kwargs)

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any
    ) -> Any:
        """Return a function that makes a replica's initial value from instance 0's."""
        value = super()._get_variable_creator_initial_value(
            replica_id, device, primary_var, **kwargs
        )
        first = self.members.first_replica

        def initial_value() -> Tensor:
            initial = value() if callable(value) else value
            if replica_id == 0:
                if isinstance(initial, CheckpointInitialValue):
                    initial = initial.wrapped_value
                initial = tf.convert_to_tensor(initial, dtype=kwargs.get("dtype"))
                if self._instances > 1 and _is_exchanged(initial):
                    initial = self._engine.from_first_instance(initial)
            seeded = first if replica_id else 0
            name = kwargs.get("name")
            return own_seed(name, initial, first + replica_id, other=seeded)

        return initial_value

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        if not isinstance(var, DistributedVariable):
            raise ValueError(
                f"The variable {var.name} was not made in the scope of this "
                "PopDistStrategy, so the replicas do not share it. Make the model and "
                "the optimizer within `with strategy.scope():`."
            )
        return super()._update(var, fn, args, kwargs, group)

    def record_write(self, variable: Any) -> None:
        """Aggregate a variable, which a replica writes, at the end of the run."""
        self._written[id(variable)] = variable
        if tf.executing_eagerly():
            return
        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, FuncGraph):
            self._written_by.setdefault(graph, {})[id(variable)] = variable
            graph = graph.outer_graph

    def record_call(self, graph: FuncGraph) -> None:
        """Record the writes of a function that is called, and was traced before."""
        if self._running:
            for variable in self._written_by.get(graph, {}).values():
                self.record_write(variable)

    # --- Runs.

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        with self._run_lock:
            return self._run(fn, args, kwargs)

    def _run(self, fn: Any, args: Any, kwargs: Any) -> Any:
        if self._running:
            return super()._call_for_each_replica(fn, args, kwargs)
        # In sessions no run has an end.
        if tf.compat.v1.executing_eagerly_outside_functions():
            # Replicas run in threads of their own.
            reduce_op = REDUCTION.get() if self.members.replicas > 1 else None
            fn = self._aggregating_function(fn, reduce_op)
        self._running = True
        PopDistExtended.runs += 1
        try:
            return super()._call_for_each_replica(fn, args, kwargs)
        finally:
            self._running = False
            self.merged.clear()

    def _aggregating_function(
        self, fn: Callable[..., Any], reduce_op: Any
    ) -> Callable[..., Any]:
        """Return _aggregating() of a function, which may be a tf.function."""
        if not isinstance(fn, Function):
            return self._aggregating(fn, reduce_op)
        aggregating = self._functions.get(fn)
        if aggregating is None:
            python = self._aggregating(fn.python_function, reduce_op)
            aggregating = fn._clone(python_function=python)
            self._functions[fn] = aggregating
        return aggregating

    def _aggregating(
        self, fn: Callable[..., Any], reduce_op: Any
    ) -> Callable[..., Any]:
        """Return a function of replicas that ends with an aggregation.

        Args:
            reduce_op: How it reduces the numbers that they return; None for not at all.
        """

        def replica_fn(*args: Any, **kwargs: Any) -> Any:
            inputs = tensors_in(args, kwargs)
            # Nothing is written in a step for which there is no data.
            with tf.control_dependencies(inputs):
                result = fn(*args, **kwargs)
                logs = logs_in(result, self.merged) if reduce_op else {}
                totals = tf.distribute.get_replica_context().merge_call(
                    self._end_run, args=(reduce_op, summands_of(logs, inputs))
                )
            # TensorFlow cannot flatten a structure if it cannot sort its keys.
            return with_logs(result, logs, totals) if logs else result

        return replica_fn

    @tf.autograph.experimental.do_not_convert
    def _end_run(
        self, strategy: tf.distribute.Strategy, reduce_op: Any, summands: list[Value]
    ) -> list[Tensor]:
        return logs_of_sums(reduce_op, self._aggregate(strategy, summands))

    @tf.autograph.experimental.do_not_convert
    def aggregate_within_run(self, variable: Any) -> None:
        """Aggregate a variable before the run ends in which replicas have written it.

        All replicas wait for what reads it: as the metrics of tf_keras in each step.
        """
        if self._running and id(variable) in self._written:
            self._aggregate(self._container_strategy())

    def _aggregate(
        self, _: tf.distribute.Strategy, summands: Sequence[Value] = ()
    ) -> list[Tensor]:
        """Aggregate what the replicas have written in the run up to now.

        Args:
            summands: Values of the replicas. It returns their sums.
        """
        written = []
        for variable in self._written.values():
            if variable.reduce_op is None and variable.dtype == tf.string:
                variable.set_aggregate(variable.values[0].read_value())
            else:
                written.append(variable)
        self._written = {}
        values = [self._summands_of(variable) for variable in written]
        values += map(self._engine.tensors_of, summands)
        if not values:
            return []
        # All have one dtype as a rule, so that they are one exchange.
        totals = self._engine.reduce_tensors(tf.distribute.ReduceOp.SUM, values)
        sums = [total for (total,) in totals]
        for variable, total in zip(written, sums, strict=False):
            if variable.reduce_op is None:
                variable.set_aggregate(tensor_of_bytes(total, variable))
                continue
            if variable.reduce_op is tf.distribute.ReduceOp.MEAN:
                total = total / tf.cast(self._num_replicas_in_sync, total.dtype)
            variable.set_aggregate(tf.cast(total, variable.dtype))
        return sums[len(written) :]

    def _summands_of(self, variable: Any) -> list[Tensor]:
        """Return the local replicas' summands of a variable's aggregate."""
        parts = [part.read_value() for part in variable.values]
        if variable.reduce_op is not None:
            return [widened(part) for part in parts]
        first = bytes_of_tensor(parts[0])
        others = [tf.zeros_like(first)] * len(parts)
        return [first, *others[1:]] if self.members.first_replica == 0 else others

    @property
    def _rank(self) -> int:
        return STATE.job.place.rank

    @property
    def _instances(self) -> int:
        return STATE.job.place.size

    @staticmethod
    def _check_input_options(options: Any) -> None:
        if (
            options is not None
            and options.experimental_replication_mode
            is tf.distribute.InputReplicationMode.PER_REPLICA
        ):
            raise NotImplementedError(
                "InputReplicationMode.PER_REPLICA is for "
                "distribute_datasets_from_function. Call that, or leave the option out."
            )


def _is_exchanged(tensor: Value) -> bool:
    """Return whether instance 0 can send a tensor: a string cannot be sent."""
    return tf.is_tensor(tensor) and tensor.dtype != tf.string


def is_popdist(strategy: Any) -> bool:
    """Return whether a strategy is a PopDistStrategy."""
    return isinstance(getattr(strategy, "extended", None), PopDistExtended)


def uses_popdist() -> bool:
    """Return whether the strategy in use here is a PopDistStrategy."""
    return is_popdist(tf.distribute.get_strategy())


@extends("create_mirrored_variable")
def create_own_variable(
    create: Callable[..., Any],
    strategy: tf.distribute.Strategy,
    create_parts: Callable[..., Any],
    classes: Mapping[Any, Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Create a variable, by popdist's classes for a PopDistStrategy."""
    own = VARIABLE_CLASSES if is_popdist(strategy) else classes
    return create(strategy, create_parts, own, *args, **kwargs)


@extends("ConcreteFunction._call_flat")
def call_recorded(call: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a traced function, and record the variables that it writes in a run.

    Its tracing alone has recorded that.
    """
    if uses_popdist():
        tf.distribute.get_strategy().extended.record_call(function.graph)
    return call(function, *args, **kwargs)


@extends("ReplicaContextBase.merge_call")
def record_merged(
    merge_call: Callable[..., Any], context: Any, *args: Any, **kwargs: Any
) -> Any:
    """Record what a replica gets from a merge_call: it is equal on all of them."""
    result = merge_call(context, *args, **kwargs)
    if is_popdist(context.strategy):
        context.strategy.extended.merged.append(result)
    return result
