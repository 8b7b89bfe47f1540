"""Distributed optimizers of Keras 3 and tf_keras."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from popdist.tensorflow.extending import extends

from ..common.calls.reduce_ops import Adasum
from ..tensorflow.gradient_reduction import (
    Gradient,
    GradientReduction,
    Variable,
    mark_alike,
    subclassed,
)
from ..tensorflow.local_aggregation import DistributedPart, LocalAggregation


class Distributed(DistributedPart):
    """The part that distributed optimizers of both Kerases have in common."""

    # Whether the gradients of the call that is under way are reduced already.
    _horovod_has_reduced = False
    # An attribute of Keras's optimizers.
    iterations: Any

    def finite_on_all(self, finite: Any) -> Any:
        """Return whether a truth value is true on all ranks that reduce gradients."""
        return self._horovod_reduction.finite_on_all(finite)

    def apply_reduced(
        self,
        pairs: list[tuple[Any, Any]],
        apply: Callable[[list[tuple[Any, Any]]], Any],
    ) -> Any:
        """Reduce gradients before a LossScaleOptimizer checks and applies them.

        Args:
            pairs: The gradients with their variables.
            apply: Calls apply_gradients() of this optimizer, if they are finite.

        Raises:
            ValueError: They are reduced after several passes only.
        """
        passes = self._agg_helper.passes
        if passes > 1:
            raise ValueError(
                f"A LossScaleOptimizer is around a DistributedOptimizer with "
                f"backward_passes_per_step={passes}, so that ranks would leave out "
                "different passes. Give the LossScaleOptimizer to DistributedOptimizer."
            )
        reduced = self._reduced(pairs)
        # Not by an attribute, which Keras tracks.
        vars(self)["_horovod_has_reduced"] = True
        try:
            return apply(reduced)
        finally:
            vars(self)["_horovod_has_reduced"] = False

    def _step(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        update: Callable[[list[Gradient]], Any],
    ) -> Any:
        """Call `update` with reduced gradients, if this is the last pass of a step."""

        if self._horovod_has_reduced:
            return update(list(gradients))

        def reduce(sums: Sequence[Gradient]) -> Any:
            return update(self._horovod_reduction.reduce(sums, variables))

        if self._agg_helper.is_step(gradients):
            return reduce(gradients)
        # Variables cannot be made in the branch of a graph.
        build: Any = getattr(self, "build", None)
        build = build or getattr(self, "_create_all_weights", None)
        with tf.init_scope():
            build(variables)

        def skip() -> None:
            # Schedules of learning rates count batches.
            self.iterations.assign_add(1)

        return self._agg_helper.step(gradients, reduce, skip)


class _OfKeras3(Distributed):
    """Comes before the class of an optimizer of Keras 3."""

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Reduce gradients among the ranks, and apply them.

        Raises:
            ValueError: There are no gradients.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise ValueError(
                f"{type(self).__name__}.apply_gradients() got no gradients. Give it "
                "pairs of a gradient and a variable: a model without trainable "
                "variables cannot be trained."
            )
        optimizer: Any = super()
        return optimizer.apply_gradients(pairs)

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


class _OfTfKeras(Distributed):
    """Comes before the class of an optimizer of tf_keras, the earlier ones too."""

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
    ) -> list[tuple[Any, Any]]:
        """Return gradients with their variables, reduced among the ranks."""
        return self._compute_gradients(loss, var_list, tape=tape)

    # The earlier optimizers have it alone, and the others compute_gradients() alone.
    # Horovod gives both to each.
    def _compute_gradients(
        self,
        loss: Any,
        var_list: Any,
        grad_loss: Any = None,
        tape: tf.GradientTape | None = None,
    ) -> list[tuple[Any, Any]]:
        optimizer: Any = super()
        if hasattr(optimizer, "_compute_gradients"):
            pairs = optimizer._compute_gradients(loss, var_list, grad_loss, tape)
        elif grad_loss is None:
            pairs = optimizer.compute_gradients(loss, var_list, tape)
        else:
            raise TypeError(
                "grad_loss is given, but only the optimizers in "
                "tf_keras.optimizers.legacy take it. Use one of them, or scale the "
                "loss itself."
            )
        return self._reduced(pairs)

    def get_gradients(self, loss: Any, params: Sequence[Variable]) -> list[Gradient]:
        """Return the gradients of a loss in a graph, reduced among the ranks."""
        optimizer: Any = super()
        gradients = optimizer.get_gradients(loss, params)
        pairs = self._reduced(list(zip(gradients, params, strict=True)))
        return [gradient for gradient, _ in pairs]

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Apply gradients, and reduce them before, unless they are reduced already."""
        optimizer: Any = super()
        given = list(grads_and_vars)
        gradients = [gradient for gradient, _ in given]
        variables = [variable for _, variable in given]

        def update(reduced: list[Gradient]) -> Any:
            pairs = list(zip(reduced, variables, strict=True))
            return optimizer.apply_gradients(pairs, *args, **kwargs)

        return self._step(gradients, variables, update)


def distributed(
    optimizer: Any, reduction: GradientReduction, aggregation: LocalAggregation
) -> Any:
    """Return an optimizer of a subclass of the given one's class, with its state.

    Raises:
        ValueError: It is no optimizer of Keras, or Adasum is asked for.
    """
    kind = type(optimizer)
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(
            f"The optimizer is a {kind.__name__}, but must be one of "
            "tf.compat.v1.train or of Keras."
        )
    if isinstance(optimizer, Distributed):
        raise ValueError(
            f"The {kind.__name__} is a DistributedOptimizer already. Give the "
            "optimizer that it was made of."
        )
    if reduction.reduction.op is Adasum:
        raise ValueError(
            "op is Adasum, which Horovod does not support with Keras. Use Average or "
            "Sum, or an optimizer of tf.compat.v1.train."
        )
    part = _OfKeras3 if hasattr(optimizer, "apply") else _OfTfKeras
    return subclassed(
        optimizer, part, _horovod_reduction=reduction, _agg_helper=aggregation
    )


# A LossScaleOptimizer around a distributed one skips steps on all ranks alike: an
# overflow on one rank would make the others wait for its gradients.
@extends("LossScaleOptimizer.check_finite")
def check_on_all(
    check_finite: Callable[..., Any], optimizer: Any, gradients: Sequence[Gradient]
) -> Any:
    """Return whether the gradients of all ranks are finite."""
    finite = check_finite(optimizer, gradients)
    inner = optimizer.inner_optimizer
    return inner.finite_on_all(finite) if isinstance(inner, Distributed) else finite


@extends("LossScaleOptimizer.apply_gradients", "LossScaleOptimizerV3.apply_gradients")
def apply_reduced(
    apply_gradients: Callable[..., Any],
    optimizer: Any,
    grads_and_vars: Iterable[tuple[Any, Any]],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Check and apply the gradients of all ranks, which are reduced before."""

    def apply(pairs: list[tuple[Any, Any]]) -> Any:
        return apply_gradients(optimizer, pairs, *args, **kwargs)

    pairs, inner = list(grads_and_vars), optimizer.inner_optimizer
    distributed = isinstance(inner, Distributed)
    return inner.apply_reduced(pairs, apply) if distributed else apply(pairs)


@extends("_multiply_gradient")
def multiply_alike(multiply: Callable[..., Any], gradient: Gradient, scale: Any) -> Any:
    """Return a gradient without the scale of the loss, which stays a reduced one."""
    return mark_alike(multiply(gradient, scale), gradient)
