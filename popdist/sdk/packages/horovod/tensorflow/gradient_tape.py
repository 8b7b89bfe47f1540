"""DistributedGradientTape: a tape that reduces gradients among the ranks."""

from collections.abc import Iterable, Sequence
from inspect import Signature, signature
from typing import Any

import tensorflow as tf

from ..common.calls.reduce_ops import Average
from ..common.compression import Compressor
from ..common.optimizer_arguments import checked_reduction
from ..common.process_sets import ProcessSet, global_process_set
from .compression import Compression
from .gradient_reduction import (
    GradientReduction,
    Variable,
    check_groups,
    subclassed,
)


class _DistributedGradientTape(tf.GradientTape):
    """The part of a DistributedGradientTape that comes before its tape's class."""

    _reduction: GradientReduction

    def register_local_source(self, source: Variable) -> None:
        """Leave gradients for a variable as they are on each rank."""
        self._reduction.add_local(source)

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the gradients of a target for sources, reduced among the ranks."""
        gradients = super().gradient(target, sources, *args, **kwargs)
        flat = self._reduction.reduce(
            tf.nest.flatten(gradients), tf.nest.flatten(sources)
        )
        return tf.nest.pack_sequence_as(gradients, flat)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Variable], *args: Any, **kwargs: Any
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return local sources with their gradients, and the other ones with theirs."""
        gradients = self.gradient(target, sources, *args, **kwargs)
        pairs: tuple[list[Any], list[Any]] = [], []
        for pair in zip(sources, gradients, strict=True):
            pairs[not self._reduction.is_local(pair[0])].append(pair)
        return pairs


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Variable]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Return a tape like the given one that reduces gradients among the ranks.

    Args:
        gradtape: The tape, which may have recorded already.
        device_dense: Has no effect: all tensors are in the CPU's memory.
        device_sparse: Has no effect.
        compression: The compressor of gradients that are reduced.
        sparse_as_dense: Reduce tf.IndexedSlices as dense tensors.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: For an Average: what gradients are divided by before
            they are added up. After that, they are multiplied by it, and divided by
            the number of ranks.
        num_groups: Has no effect: all gradients are reduced in one call.
        groups: Has no effect, as num_groups.
        process_set: The ranks that take part.
        scale_local_gradients: Divide the gradients of local sources by the number of
            ranks.

    Raises:
        ValueError: The arguments are not valid.
    """
    check_groups(num_groups, groups)
    reduction = GradientReduction(
        compression,
        sparse_as_dense,
        checked_reduction(op, gradient_predivide_factor),
        process_set,
        scale_local_gradients,
    )
    tape: tf.GradientTape = subclassed(
        gradtape, _DistributedGradientTape, _reduction=reduction
    )
    return tape


def PartialDistributedGradientTape(*args: Any, **kwargs: Any) -> tf.GradientTape:
    """Return a DistributedGradientTape that leaves the gradients of some layers alone.

    Its arguments are DistributedGradientTape()'s, and `local_layers`: layers with
    separate variables on each rank.
    """
    arguments = _PARTIAL_SIGNATURE.bind(*args, **kwargs).arguments
    local = variables_of(arguments.pop("local_layers", None))
    # Any: register_local_source() is no method of the declared class.
    tape: Any = DistributedGradientTape(**arguments)
    for variable in local:
        tape.register_local_source(variable)
    result: tf.GradientTape = tape
    return result


*_FIRST, _LAST = signature(DistributedGradientTape).parameters.values()
_LOCAL_LAYERS = _LAST.replace(name="local_layers", default=None, annotation=Any)
_PARTIAL_SIGNATURE = Signature([*_FIRST, _LOCAL_LAYERS, _LAST])
PartialDistributedGradientTape.__signature__ = _PARTIAL_SIGNATURE  # type: ignore[attr-defined]


def variables_of(layers: Any) -> Iterable[Variable]:
    """Return the trainable variables of a layer, several ones or None."""
    several = layers if isinstance(layers, list | tuple | set) else [layers]
    return [
        variable
        for layer in several
        if layer is not None
        for variable in layer.trainable_weights
    ]
