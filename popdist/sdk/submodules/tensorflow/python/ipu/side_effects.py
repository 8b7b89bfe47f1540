"""Operations with side effects. All of them run in a computation for an IPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_ops import ControlFlowContext

# TensorFlow calls them stateful, but they change nothing. XLA compiles no assertions.
_WITHOUT_EFFECT = frozenset(
    {"Assert", "ReadVariableOp", "VarHandleOp", "VarIsInitializedOp"}
)


class _Computation(ControlFlowContext):
    """Marks the operations of a computation.

    TensorFlow leaves such a context to create operations that run once, such as initial
    values of variables. They must not run in each step.
    """

    # Its name in TensorFlow's errors.
    _name = "computation"

    # The names are TensorFlow's. Any: operations, tensors and a message of protobuf.
    def AddOp(self, op: Any) -> None:
        """Take an operation as it is."""

    def AddValue(self, val: Any) -> Any:
        """Return a tensor as it is, for a loop or a branch within the computation."""
        return val

    def to_control_flow_context_def(
        self, context_def: Any, export_scope: str | None = None
    ) -> None:
        """Write nothing: a graph that is read again has run its computation before."""


@contextmanager
def recorded_side_effects() -> Iterator[list[Any]]:
    """Yield a list that gets the new operations with side effects.

    In eager execution they have run, and it stays empty. It has no operations of loops
    and branches: they cannot run alone.
    """
    operations: list[Any] = []
    if tf.executing_eagerly():
        yield operations
        return
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    context = graph._get_control_flow_context()
    entered = None
    if context is None:
        context = entered = _Computation()
        entered.Enter()
    # By this, TensorFlow's functions for branches and loops run their side effects.
    before, graph._add_control_dependencies = graph._add_control_dependencies, True
    try:
        yield operations
    finally:
        graph._add_control_dependencies = before
        if entered is not None:
            entered.Exit()
    operations += [
        each
        for each in graph.get_operations()[first:]
        if each.op_def.is_stateful
        and each.type not in _WITHOUT_EFFECT
        and each._get_control_flow_context() is context
    ]
