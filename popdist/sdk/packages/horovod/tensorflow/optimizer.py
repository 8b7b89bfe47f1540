"""DistributedOptimizer, and distributed optimizers of TensorFlow 1."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor

from ..common.calls.reduce_ops import Adasum, Average
from ..common.compression import Compressor
from ..common.process_sets import ProcessSet, global_process_set
from .collectives import grouped_allreduce
from .compression import Compression
from .gradient_reduction import GradientReduction, Variable, check_groups
from .local_aggregation import LocalAggregation

GradientsAndVariables = Iterable[tuple[Any, Any]]


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer that reduces the gradients of another one."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        reduction: GradientReduction,
        aggregation: LocalAggregation,
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        self._aggregation = aggregation

    def register_local_var(self, var: Variable) -> None:
        """Leave the gradients of a variable as they are on each rank."""
        self._reduction.add_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return gradients with their variables, reduced among the ranks.

        With several backward passes for a step, apply_gradients() reduces their sums.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if self._aggregation.passes > 1:
            return list(pairs)
        return self._reduction.reduce_pairs(pairs)

    def apply_gradients(
        self,
        grads_and_vars: GradientsAndVariables,
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Make the optimizer's step, if this is the last pass of it.

        Each pass is counted in the global step.
        """
        pairs = list(grads_and_vars)
        gradients = [gradient for gradient, _ in pairs]
        if self._aggregation.is_step(gradients):
            return self._optimizer.apply_gradients(pairs, global_step, name)

        def update(sums: list[Tensor]) -> Any:
            variables = [variable for _, variable in pairs]
            reduced = self._reduction.reduce_pairs(zip(sums, variables, strict=True))
            return self._optimizer.apply_gradients(reduced, global_step, name)

        def skip() -> Any:
            if global_step is None:
                return tf.no_op()
            return global_step.assign_add(1, read_value=False)

        return self._aggregation.step(gradients, update, skip)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the optimizer's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return the optimizer's variables."""
        return self._optimizer.variables(*args, **kwargs)


class _AdasumOptimizer(_DistributedOptimizer):
    """Makes a step by the rank's own gradients, and combines the ranks' changes."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the rank's own gradients with their variables."""
        pairs: list[tuple[Any, Any]] = self._optimizer.compute_gradients(
            *args, **kwargs
        )
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: GradientsAndVariables,
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Make the optimizer's step; after the last pass, combine the changes."""
        pairs = list(grads_and_vars)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        before = [tf.identity(variable.read_value()) for variable in variables]
        with tf.control_dependencies([] if tf.executing_eagerly() else before):
            updated = self._optimizer.apply_gradients(pairs, global_step, name)
        with tf.control_dependencies([] if tf.executing_eagerly() else [updated]):
            changes = [
                variable.read_value() - start
                for variable, start in zip(variables, before, strict=True)
            ]
            combined = grouped_allreduce(
                changes,
                compression=self._reduction.compression,
                op=Adasum,
                process_set=self._reduction.process_set,
            )
            return tf.group(
                *[
                    variable.assign(start + change)
                    for variable, start, change in zip(
                        variables, before, combined, strict=True
                    )
                ]
            )


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Variable]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer like the given one that reduces gradients among the ranks.

    Args:
        optimizer: An optimizer of tf.compat.v1.train, or of Keras.
        name: The name of operations in a graph.
        use_locking: Lock variables of a graph that are updated.
        device_dense: Has no effect: all tensors are in the CPU's memory.
        device_sparse: Has no effect.
        compression: The compressor of gradients that are reduced.
        sparse_as_dense: Reduce tf.IndexedSlices as dense tensors.
        backward_passes_per_step: How many gradients are added up before they are
            reduced and applied.
        op: Average, Sum or, for tf.compat.v1.train, Adasum.
        gradient_predivide_factor: For an Average: what gradients are divided by before
            they are added up. After that, they are multiplied by it, and divided by
            the number of ranks.
        average_aggregated_gradients: Divide the sums of several passes by their number.
        num_groups: Has no effect: all gradients of a step are reduced in one call.
        groups: Has no effect, as num_groups.
        process_set: The ranks that take part.
        scale_local_gradients: Divide the gradients of local variables by the number of
            ranks.

    Raises:
        ValueError: The arguments are not valid, or the optimizer is none of these.
    """
    check_groups(num_groups, groups)
    reduction = GradientReduction(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    aggregation = LocalAggregation(
        backward_passes_per_step, average_aggregated_gradients
    )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        # Keras takes a second to import, and programs for TensorFlow 1 need none.
        from .._keras.optimizer import distributed

        return distributed(optimizer, reduction, aggregation)
    if op != Adasum:
        kind = _DistributedOptimizer
    elif backward_passes_per_step == 1:
        kind = _AdasumOptimizer
    else:
        raise ValueError(
            f"backward_passes_per_step is {backward_passes_per_step} with op=Adasum, "
            "but must be 1: each step combines the changes of the ranks."
        )
    name = name or f"Distributed{type(optimizer).__name__}"
    return kind(optimizer, name, use_locking, reduction, aggregation)
