"""Horovod's elastic interface for TensorFlow: states of variables and of models."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from popdist.engine.calls.array_rows import Array

from ..common import elastic
from ..common.calls.objects import ARRAY_CALLS
from ..common.elastic import ObjectState, StateHandler
from ..common.elastic import State as State
from ..common.process_sets import global_process_set
from .errors import errors_of_graphs

# Any in this module: TensorFlow and both Kerases declare no types.


class VariablesHandler(StateHandler):
    """An object with variables, such as a model, an optimizer, or a list of them."""

    def __init__(
        self,
        value: Any,
        variables_of: Callable[[Any], Iterable[Any]],
        session: Callable[[], Any],
    ) -> None:
        """Handle an object.

        Args:
            value: The object.
            variables_of: Returns its variables; there may be more of them later.
            session: Returns the session of variables in a graph.
        """
        super().__init__(value)
        self._variables_of = variables_of
        self._session = session

    def read(self) -> list[Array]:
        """Return copies of the variables' values."""
        variables = list(self._variables_of(self.value))
        if tf.executing_eagerly():
            values = [tf.convert_to_tensor(variable).numpy() for variable in variables]
        else:
            values = self._session().run(variables)
        # numpy() may return the memory of the variable.
        return [np.array(value) for value in values]

    def write(self, state: Sequence[Array]) -> None:
        """Set the variables; there may be more variables than values."""
        variables = self._variables_of(self.value)
        for variable, value in zip(variables, state, strict=False):
            if tf.executing_eagerly():
                variable.assign(value)
            else:
                variable.load(value, self._session())

    def share(self) -> None:
        """Take rank 0's values, on all ranks."""
        values = self.read()
        if values:
            ARRAY_CALLS.overwrite(values, 0, global_process_set)
            self.write(values)


class TensorFlowState(ObjectState):
    """The state of a training: variables, and other objects."""

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        """Keep the variables and objects as they are now.

        Args:
            variables: The attribute `variables`; by default all of the graph.
            session: The session of a graph; by default the one that is entered.
            kwargs: More objects, by the names of the attributes.
        """
        chosen = variables or tf.compat.v1.global_variables()
        self.session = session or tf.compat.v1.get_default_session()
        self._handlers = {
            "variables": VariablesHandler(chosen, list, lambda: self.session)
        }
        super().__init__(**kwargs)


class TensorFlowKerasState(ObjectState):
    """The state of a training with either Keras: model, optimizer, other objects."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        """Keep the model and objects as they are now.

        Args:
            model: A model that is built, the attribute `model`.
            optimizer: The attribute `optimizer`; by default the model's own.
            backend: The backend of Keras, which has the session of a graph.
            kwargs: More objects, by the names of the attributes.

        Raises:
            ValueError: The model has no variables yet.
        """
        if not getattr(model, "built", True):
            raise ValueError(
                "The model of an elastic state is not built, so it has no variables "
                "that ranks could share. Call model.build(input_shape), or train one "
                "step first."
            )
        self.backend = backend

        def session() -> Any:
            return (backend or tf.compat.v1.keras.backend).get_session()

        chosen = optimizer or model.optimizer
        self._handlers = {
            "model": VariablesHandler(model, _weights_of, session),
            "optimizer": VariablesHandler(chosen, _states_of, session),
        }
        super().__init__(**kwargs)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of a State train on whatever ranks there are: a decorator.

    See horovod.common.elastic.run(). Calls in graphs may be the function's, too.
    """
    return elastic.run_fn(func, elastic.reset_ranks, errors_of_graphs)


def _weights_of(model: Any) -> Sequence[Any]:
    """Return the weights of a model, and not what its metrics count."""
    return model.weights if hasattr(model, "weights") else model.variables


def _states_of(optimizer: Any) -> Sequence[Any]:
    variables = getattr(optimizer, "variables", ())
    return variables() if callable(variables) else variables
