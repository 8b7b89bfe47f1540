"""Keras's optimizers, of release 3 and tf_keras, whose gradients all ranks reduce."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from ..common.calls.reduce_ops import Adasum
from ..tensorflow.gradient_reduction import Gradient, GradientReduction, Variable
from ..tensorflow.local_aggregation import LocalAggregation

# Any, here and below: neither Keras has types for what is overridden.


class _Distributed:
    """The part of a distributed optimizer that all of them have."""

    _horovod_reduction: GradientReduction
    _horovod_aggregation: LocalAggregation
    # Of Keras.
    iterations: Any

    def register_local_var(self, var: Variable) -> None:
        """Leave the gradients of a variable as they are on each rank."""
        self._horovod_reduction.add_local(var)

    def _step(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        update: Callable[[list[Gradient]], Any],
    ) -> Any:
        """Call `update` with reduced gradients, if this is the last pass of a step."""

        def reduce(sums: Sequence[Gradient]) -> Any:
            return update(self._horovod_reduction.reduce(sums, variables))

        if self._horovod_aggregation.passes == 1:
            return reduce(gradients)
        # Variables cannot be made in the branch of a graph.
        build: Any = getattr(self, "build", None)
        build = build or getattr(self, "_create_all_weights", None)
        with tf.init_scope():
            build(variables)

        def skip() -> None:
            # Schedules of learning rates count batches.
            self.iterations.assign_add(1)

        return self._horovod_aggregation.step(gradients, reduce, skip)


class _OfKeras3(_Distributed):
    """Comes before the class of an optimizer of Keras 3."""

    def apply(self, grads: Sequence[Gradient], trainable_variables: Any = None) -> None:
        """Reduce gradients among the ranks, and apply them."""
        optimizer: Any = super()
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables  # type: ignore[attr-defined]
        self._step(
            list(grads),
            list(variables),
            lambda reduced: optimizer.apply(reduced, trainable_variables),
        )


class _OfTfKeras(_Distributed):
    """Comes before the class of an optimizer of tf_keras, the earlier ones too."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return gradients with their variables, reduced among the ranks."""
        optimizer: Any = super()
        return self._reduced(optimizer.compute_gradients(*args, **kwargs))

    def _compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        optimizer: Any = super()
        return self._reduced(optimizer._compute_gradients(*args, **kwargs))

    def get_gradients(self, loss: Any, params: Sequence[Variable]) -> list[Gradient]:
        """Return the gradients of a loss in a graph, reduced among the ranks."""
        optimizer: Any = super()
        gradients = optimizer.get_gradients(loss, params)
        pairs = self._reduced(list(zip(gradients, params, strict=True)))
        return [gradient for gradient, _ in pairs]

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Apply gradients, those that are not reduced yet after that."""
        optimizer: Any = super()
        gradients, variables = zip(*grads_and_vars, strict=True)

        def update(reduced: list[Gradient]) -> Any:
            pairs = list(zip(reduced, variables, strict=True))
            return optimizer.apply_gradients(pairs, *args, **kwargs)

        return self._step(gradients, variables, update)

    def _reduced(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        if self._horovod_aggregation.passes > 1:
            return pairs
        gradients, variables = zip(*pairs, strict=True)
        reduced = self._horovod_reduction.reduce(gradients, variables)
        return list(zip(reduced, variables, strict=True))


def distributed(
    optimizer: Any, reduction: GradientReduction, aggregation: LocalAggregation
) -> Any:
    """Return an optimizer of a subclass of the given one's class, with its state.

    The class has the same name, so that a saved model is loaded without Horovod, too.

    Raises:
        ValueError: It is no optimizer of Keras, or Adasum is asked for.
    """
    kind = type(optimizer)
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(
            f"The optimizer is a {kind.__name__}, but must be one of "
            "tf.compat.v1.train or of Keras."
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError(
            f"The {kind.__name__} is a DistributedOptimizer already. Give the "
            "optimizer that it was made of."
        )
    if reduction.op == Adasum:
        raise ValueError(
            "op is Adasum, which Horovod does not support with Keras. Use Average or "
            "Sum, or an optimizer of tf.compat.v1.train."
        )
    part = _OfKeras3 if hasattr(optimizer, "apply") else _OfTfKeras
    subclass = type(kind.__name__, (part, kind), {"__module__": kind.__module__})
    wrapped: Any = object.__new__(subclass)
    # Not by attributes, which both Keras and TensorFlow track.
    vars(wrapped).update(vars(optimizer))
    vars(wrapped).update(_horovod_reduction=reduction, _horovod_aggregation=aggregation)
    return wrapped
