"""Gradients of several backward passes, added up on a rank before they are reduced."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor

from ..common.optimizer_arguments import checked_passes
from .gradient_reduction import Gradient, GradientReduction, Variable

# Any: tensors, operations or None, as optimizers return them.
Pair = tuple[Gradient, Variable]
Update = Callable[[list[Tensor]], Any]


class LocalAggregation:
    """Adds up the gradients of so many passes for each step."""

    def __init__(self, passes: int, average: bool) -> None:
        """Begin with no gradients.

        Args:
            passes: How many gradients are added up.
            average: Divide sums by that number.

        Raises:
            ValueError: The number is not valid.
        """
        self.passes = checked_passes(passes)
        self._average = average
        # Made at the first pass. Any: TensorFlow has no types.
        self.counter: Any = None
        self._sums: list[Any] = []

    def is_step(self, gradients: Sequence[Gradient]) -> bool:
        """Return whether the gradients of one pass go to the optimizer as they are.

        A pass without gradients does, too: the optimizer says whether that is an error.
        """
        return self.passes == 1 or all(each is None for each in gradients)

    @tf.autograph.experimental.do_not_convert
    def step(
        self,
        gradients: Sequence[Gradient],
        update: Update,
        skip: Callable[[], object],
    ) -> Tensor:
        """Add gradients, and with the sums of the last pass of a step call `update`.

        Args:
            gradients: None stands for no gradient, in each pass.
            update: Reduces and applies sums. They have None in the place of each None.
            skip: Is called for the other passes.

        Returns the number of passes that are added up then.
        """
        present = [tf.convert_to_tensor(each) for each in gradients if each is not None]
        if self.counter is None:
            with tf.init_scope():
                self.counter = tf.Variable(0, trainable=False, name="passes")
                self._sums = [
                    tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False)
                    for each in present
                ]
        added = [
            total.assign_add(each, read_value=False)
            for total, each in zip(self._sums, present, strict=True)
        ]
        added.append(self.counter.assign_add(1, read_value=False))

        def last() -> Tensor:
            sums = iter([self._total(total) for total in self._sums])
            whole = [None if each is None else next(sums) for each in gradients]
            with _after([update(whole)]):
                cleared = [
                    total.assign(tf.zeros_like(total), read_value=False)
                    for total in self._sums
                ]
                cleared.append(self.counter.assign(0, read_value=False))
            with _after(cleared):
                return self.counter.read_value()

        def other() -> Tensor:
            with _after([skip()]):
                return self.counter.read_value()

        with _after(added):
            return tf.cond(
                tf.equal(self.counter.read_value(), self.passes), last, other
            )

    def _total(self, total: Any) -> Tensor:
        value = total.read_value()
        return value / tf.cast(self.passes, value.dtype) if self._average else value


class DistributedPart:
    """The part that all distributed optimizers have in common."""

    _horovod_reduction: GradientReduction
    # Programs read its counter by this name.
    _agg_helper: LocalAggregation

    def register_local_var(self, var: Variable) -> None:
        """Leave the gradients of a variable as they are on each rank."""
        self._horovod_reduction.add_local(var)

    def _reduced(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Return computed gradients, reduced unless several passes are added up."""
        if self._agg_helper.passes > 1:
            return list(pairs)
        return self._horovod_reduction.reduce_pairs(pairs)


def _after(values: Sequence[Any]) -> Any:
    """Return a context in which a graph's operations come after these, if any are."""
    operations = [
        getattr(value, "op", value)
        for value in values
        if isinstance(value, tf.Operation | tf.Tensor)
    ]
    return tf.control_dependencies([] if tf.executing_eagerly() else operations)
