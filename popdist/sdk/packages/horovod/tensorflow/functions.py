"""Broadcasts of variables and objects, and the hook that does so in a session."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from ..common.calls import objects
from ..common.process_sets import ProcessSet, global_process_set
from .calls import TensorLike
from .collectives import broadcast_


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[TensorLike],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite variables with one rank's.

    Args:
        variables: Variables of the same shapes and dtypes on all ranks.
        root_rank: The rank that sends its variables.
        process_set: The ranks that take part.
        inplace: Has no effect: the memory of variables is TensorFlow's.

    Returns an operation in a session's graph.
    """
    assigned = broadcast_(variables, root_rank, process_set=process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that overwrites all variables of a graph by one rank's.

    Raises:
        RuntimeError: Variables are in no graph, because they are used eagerly.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs a graph of TensorFlow 1. Use "
            "hvd.broadcast_variables(variables, root_rank) for the variables of a "
            "model and an optimizer."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Overwrites all variables of a session's graph by one rank's when it begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Make a hook; the device has no effect."""
        super().__init__()
        self.root_rank = root_rank
        # Any: an operation, and None before begin().
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph, once."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Carry out the broadcast."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of one rank, on all ranks.

    Args:
        obj: An object that can be pickled; only the root's counts.
        root_rank: The rank that sends its object.
        session: Not needed here.
        name: The name that matches the ranks' calls.
        process_set: The ranks that take part.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return broadcast_object() as a function of the object alone."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return a list of all ranks' objects, which can be pickled."""
    return objects.allgather_object(obj, name, process_set)
