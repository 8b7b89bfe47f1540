"""The functions of horovod.keras: calls on values, and distributed optimizers."""

from collections.abc import Callable, Sequence
from inspect import Signature, signature
from typing import Any

import tensorflow as tf

from ..common.calls.reduce_ops import Average
from ..common.compression import Compressor
from ..tensorflow import collectives
from ..tensorflow.compression import Compression
from ..tensorflow.functions import broadcast_global_variables as global_broadcast
from ..tensorflow.gradient_tape import variables_of
from ..tensorflow.optimizer import DistributedOptimizer as any_optimizer


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Compressor = Compression.none,
) -> Any:
    """Return the ranks' values reduced to one: their average, unless op says else."""
    return evaluated(
        collectives.allreduce(
            tf.constant(value),
            average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the ranks' values, one after the other along the first dimension."""
    return evaluated(collectives.allgather(tf.constant(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of one rank, on all ranks."""
    return evaluated(collectives.broadcast(tf.constant(value), root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Return this rank's rows of the ranks' values reduced to one."""
    return evaluated(collectives.reducescatter(tf.constant(value), op=op, name=name))


def broadcast_global_variables(root_rank: int) -> None:
    """Overwrite all variables of the graph of Keras's session by one rank's.

    Raises:
        RuntimeError: Variables are in no graph, because they are used eagerly.
    """
    evaluated(global_broadcast(root_rank))


def evaluated(result: Any) -> Any:
    """Return a result itself, or in a graph the value that Keras's session computes."""
    if tf.executing_eagerly():
        return result
    return tf.compat.v1.keras.backend.get_session().run(result)


# In the order of horovod.keras: horovod.tensorflow has another one.
_ARGUMENTS = (
    "optimizer",
    "name",
    "device_dense",
    "device_sparse",
    "compression",
    "sparse_as_dense",
    "gradient_predivide_factor",
    "op",
    "backward_passes_per_step",
    "average_aggregated_gradients",
    "num_groups",
    "groups",
    "process_set",
    "scale_local_gradients",
)
_PARAMETERS = signature(any_optimizer).parameters
_SIGNATURE = Signature([_PARAMETERS[name] for name in _ARGUMENTS])


def DistributedOptimizer(*args: Any, **kwargs: Any) -> Any:
    """Return an optimizer like the given one that reduces gradients among the ranks.

    horovod.tensorflow.DistributedOptimizer() has the same arguments, in another order
    and with `use_locking`.
    """
    return any_optimizer(**_SIGNATURE.bind(*args, **kwargs).arguments)


DistributedOptimizer.__signature__ = _SIGNATURE  # type: ignore[attr-defined]


def PartialDistributedOptimizer(
    optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Any:
    """Return a DistributedOptimizer that leaves the gradients of some layers alone.

    Args:
        optimizer: An optimizer. The other arguments, too, are DistributedOptimizer()'s.
        local_layers: Layers with separate variables on each rank.
    """
    distributed = DistributedOptimizer(optimizer, *args, **kwargs)
    for variable in variables_of(local_layers):
        distributed.register_local_var(variable)
    return distributed


def loader(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return Horovod's load_model(), which calls a Keras's."""

    def load_model(
        filepath: Any,
        custom_optimizers: Sequence[type[Any]] | None = None,
        custom_objects: dict[str, Any] | None = None,
        compression: Compressor = Compression.none,
        legacy_opts: bool = False,
    ) -> Any:
        """Return a saved model, with its optimizer as a DistributedOptimizer.

        The optimizer goes on with the state that was saved.

        Args:
            filepath: Where the model was saved, with any optimizer.
            custom_optimizers: Classes of optimizers that Keras does not have.
            custom_objects: Other classes and functions that it does not have, by name.
            compression: The compressor of gradients that are reduced.
            legacy_opts: Has no effect: optimizers of all classes are loaded.
        """
        optimizers = {each.__name__: each for each in custom_optimizers or ()}
        model = load(filepath, custom_objects=optimizers | (custom_objects or {}))
        if getattr(model, "optimizer", None) is not None:
            model.optimizer = DistributedOptimizer(
                model.optimizer, compression=compression
            )
        return model

    return load_model
