"""DistributedOptimizer, and distributed optimizers of TensorFlow 1."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor

from ..common.calls.reduce_ops import Adasum, Average
from ..common.compression import Compressor
from ..common.optimizer_arguments import checked_reduction
from ..common.process_sets import ProcessSet, global_process_set
from .collectives import grouped_allreduce
from .compression import Compression
from .gradient_reduction import GradientReduction, Variable, check_groups, subclassed
from .local_aggregation import DistributedPart, LocalAggregation

GradientsAndVariables = Iterable[tuple[Any, Any]]


class _DistributedOptimizer(DistributedPart, tf.compat.v1.train.Optimizer):
    """Comes before the class of an optimizer, and reduces its gradients."""

    _horovod_name: str

    def get_name(self) -> str:
        """Return the name of operations in a graph."""
        return self._horovod_name

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return gradients with their variables, reduced among the ranks.

        With several backward passes for a step, apply_gradients() reduces their sums.
        """
        return self._reduced(super().compute_gradients(*args, **kwargs))

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
        optimizer: Any = super()
        if self._agg_helper.is_step(gradients):
            return optimizer.apply_gradients(pairs, global_step, name)

        def update(sums: list[Tensor]) -> Any:
            variables = [variable for _, variable in pairs]
            summed = zip(sums, variables, strict=True)
            reduced = self._horovod_reduction.reduce_pairs(summed)
            return optimizer.apply_gradients(reduced, global_step, name)

        def skip() -> Any:
            if global_step is None:
                return tf.no_op()
            return global_step.assign_add(1, read_value=False)

        return self._agg_helper.step(gradients, update, skip)


class _AdasumOptimizer(_DistributedOptimizer):
    """Makes a step by the rank's own gradients, and combines the ranks' changes."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the rank's own gradients with their variables."""
        # Not by the method that reduces them.
        own: Any = super(_DistributedOptimizer, self)
        return list(own.compute_gradients(*args, **kwargs))

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
            updated = super().apply_gradients(pairs, global_step, name)
        with tf.control_dependencies([] if tf.executing_eagerly() else [updated]):
            changes = [
                variable.read_value() - start
                for variable, start in zip(variables, before, strict=True)
            ]
            combined = grouped_allreduce(
                changes,
                compression=self._horovod_reduction.compression,
                op=Adasum,
                process_set=self._horovod_reduction.process_set,
            )
            steps = zip(variables, before, combined, strict=True)
            return tf.group(*[each.assign(old + step) for each, old, step in steps])


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
        compression,
        sparse_as_dense,
        checked_reduction(op, gradient_predivide_factor),
        process_set,
        scale_local_gradients,
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
    return subclassed(
        optimizer,
        kind,
        _horovod_reduction=reduction,
        _agg_helper=aggregation,
        _horovod_name=name or f"Distributed{type(optimizer).__name__}",
        _use_locking=use_locking or optimizer._use_locking,
    )
