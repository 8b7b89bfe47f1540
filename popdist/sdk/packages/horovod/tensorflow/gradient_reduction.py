"""Gradients of a step, reduced among the ranks for tapes and optimizers."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor

from ..common.calls.reduce_ops import Reduction, Sum
from ..common.calls.submission import BASICS
from ..common.compression import Compressor
from ..common.process_sets import ProcessSet
from .collectives import allreduce, grouped_allreduce

# An attribute of reduced gradients: no optimizer reduces them once more.
_REDUCED = "_reduced_by_horovod"

# Any: a tensor or slices, or None where a loss does not depend on a variable.
Gradient = Any
# Any: of TensorFlow or of Keras.
Variable = Any


@dataclass(frozen=True, slots=True)
class GradientReduction:
    """How gradients are reduced.

    All of a step are reduced in one call: groups of gradients, which Horovod makes to
    do so, change nothing.
    """

    compression: Compressor
    sparse_as_dense: bool
    reduction: Reduction
    process_set: ProcessSet
    scale_local_gradients: bool
    # Keys of variables with separate gradients on each rank.
    local: set[Hashable] = field(default_factory=set)

    def add_local(self, variable: Variable) -> None:
        """Leave the gradients of a variable as they are on each rank."""
        self.local.add(key_of(variable))

    def is_local(self, variable: Variable) -> bool:
        """Return whether the ranks have separate gradients for a variable."""
        return key_of(variable) in self.local

    @tf.autograph.experimental.do_not_convert
    def reduce(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> list[Gradient]:
        """Return gradients of variables, reduced unless the variables are local.

        Raises:
            ValueError: Horovod is not initialized, or the process set not registered.
        """
        results = dict(enumerate(gradients))
        if not self._exchanges():
            return [*results.values()]
        size = self.process_set.size() or 1
        shared = {}
        for index, variable in enumerate(variables):
            gradient = results[index]
            if gradient is None or hasattr(gradient, _REDUCED):
                continue
            if not self.is_local(variable):
                shared[index] = gradient
            elif self.scale_local_gradients:
                results[index] = _marked(_divided(gradient, size))
        reduced = map(_marked, self._reduced([*shared.values()]))
        results |= zip(shared, reduced, strict=True)
        return [*results.values()]

    def reduce_pairs(
        self, pairs: Iterable[tuple[Gradient, Variable]]
    ) -> list[tuple[Gradient, Variable]]:
        """Return gradients with their variables, reduced as by reduce()."""
        given = list(pairs)
        variables = [variable for _, variable in given]
        reduced = self.reduce([gradient for gradient, _ in given], variables)
        return list(zip(reduced, variables, strict=True))

    @tf.autograph.experimental.do_not_convert
    def finite_on_all(self, finite: Tensor) -> Tensor:
        """Return whether a truth value is true on all ranks of the process set."""
        if not self._exchanges():
            return finite
        overflows = allreduce(
            tf.cast(tf.logical_not(finite), tf.int32),
            op=Sum,
            process_set=self.process_set,
        )
        return tf.equal(overflows, 0)

    def _exchanges(self) -> bool:
        """Return whether there are other ranks, and this one takes part."""
        included = self.process_set.included()
        if included is None:
            # Raises the error of a missing init(), or of a set that was not added.
            BASICS.negotiator(self.process_set)
        return bool(included) and (self.process_set.size() or 1) > 1

    def _reduced(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        if self.sparse_as_dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return grouped_allreduce(
            gradients,
            compression=self.compression,
            op=self.reduction.op,
            prescale_factor=self.reduction.prescale,
            postscale_factor=self.reduction.postscale,
            process_set=self.process_set,
        )


def key_of(variable: Variable) -> Hashable:
    """Return a key of a variable that all objects for it share."""
    tensor: Any = getattr(variable, "value", variable)
    original = variable if callable(tensor) else tensor
    key: Hashable = original.ref() if hasattr(original, "ref") else id(original)
    return key


def mark_alike(gradient: Gradient, source: Gradient) -> Gradient:
    """Return a gradient, marked as reduced if its source is."""
    return _marked(gradient) if hasattr(source, _REDUCED) else gradient


def subclassed(original: Any, part: type[Any], **attributes: object) -> Any:
    """Return an object of a subclass that begins with `part`, with the same state.

    The class has the same name, so that a saved model is loaded without Horovod, too.
    """
    kind = type(original)
    subclass = type(kind.__name__, (part, kind), {"__module__": kind.__module__})
    result: Any = object.__new__(subclass)
    # Not by attributes, which both Keras and TensorFlow track.
    vars(result).update(vars(original), **attributes)
    return result


def check_groups(num_groups: int, groups: int | Iterable[Any] | None) -> None:
    """Raise ValueError unless these are numbers of groups, or lists of variables."""
    for name, value in (("num_groups", num_groups), ("groups", groups)):
        if isinstance(value, int) and value < 0:
            raise ValueError(
                f"{name} is {value}, but must be a number of groups, from 0, or lists "
                "of variables."
            )


def _divided(gradient: Gradient, size: int) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(size, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(size, gradient.dtype)


def _marked(gradient: Gradient) -> Gradient:
    setattr(gradient, _REDUCED, True)
    return gradient
