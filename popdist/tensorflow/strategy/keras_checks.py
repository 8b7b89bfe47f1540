"""Mistakes with models of Keras and strategies, which fit names before it trains."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import tensorflow as tf

from popdist.replicated.lone_training import told
from popdist.tensorflow.strategy.extending import extend

logger = logging.getLogger("popdist.tensorflow")

# The model that fit trains, in the running call.
_IN_FIT: ContextVar[Any] = ContextVar("popdist.fit", default=None)
_SCOPE = "Make the model and the optimizer within `with strategy.scope():`."


def check_models(strategy_class: type[Any], is_mistake: Callable[[], bool]) -> None:
    """Let the Kerases that are imported check what they train.

    Args:
        strategy_class: The class of strategies whose models are checked.
        is_mistake: Returns whether a model that no strategy trains should be one of a
            PopDistStrategy.
    """
    check = partial(_checked_fit, strategy_class, is_mistake)
    extend("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer", "fit", check)
    extend("tf_keras.src.engine.training", "Model", "fit", check)
    begin = partial(_begin_alike, strategy_class)
    extend("keras.src.callbacks.callback_list", "CallbackList", "on_train_begin", begin)


def _checked_fit(
    strategy_class: type[Any],
    is_mistake: Callable[[], bool],
    fit: Callable[..., Any],
    model: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    # The first name is that of Keras 3, the second that of tf_keras.
    own = getattr(model, "_distribute_strategy", None) or getattr(
        model, "_distribution_strategy", None
    )
    current = tf.distribute.get_strategy()
    if isinstance(own, strategy_class):
        _check_optimizer(model, own)
    elif isinstance(current, strategy_class) or any(
        isinstance(each, strategy_class) for each in _strategies_of_parts(model)
    ):
        raise ValueError(
            "The model was not made in the scope of the PopDistStrategy in which it is "
            f"compiled or trained, so the replicas do not share it. {_SCOPE}"
        )
    elif own is None and is_mistake():
        logger.warning(
            "The model %s was not made in the scope of the PopDistStrategy, so each "
            "instance trains one of its own. %s",
            model.name,
            _SCOPE,
        )
        told.set()
    token = _IN_FIT.set(model)
    try:
        return fit(model, *args, **kwargs)
    finally:
        _IN_FIT.reset(token)


def _begin_alike(
    strategy_class: type[Any],
    begin: Callable[..., None],
    callbacks: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Begin a training, in which all instances have restored the same backup or none.

    A callback of Keras 3 restores it, and sets the epoch with which fit begins. In a
    loop of the program's own, one instance may call its callbacks alone.
    """
    begin(callbacks, *args, **kwargs)
    model = callbacks._model
    strategy = getattr(model, "_distribute_strategy", None)
    if model is not _IN_FIT.get() or not isinstance(strategy, strategy_class):
        return
    epochs = strategy.extended.members.gather(model._initial_epoch or 0)
    if len(set(epochs)) > 1:
        raise ValueError(
            f"The instances begin with the epochs {epochs}, from instance 0 on: not "
            "all have restored the same backup. Give all of them a BackupAndRestore "
            "with a folder that all hosts share, or copy it to each host."
        )


# Any: neither Keras declares types.
def _strategies_of_parts(model: Any) -> list[Any]:
    """Return the strategies of a model's optimizer and variables; None for none."""
    # Those of Keras 3 have variables of TensorFlow as values.
    variables = [getattr(each, "_value", each) for each in _variables_of(model)]
    strategies = [getattr(each, "_distribute_strategy", None) for each in variables]
    return [_strategy_of_optimizer(model), *strategies]


def _variables_of(model: Any) -> Iterator[Any]:
    """Return the variables of a model's layers, of those that are built."""
    for layer in model.layers:
        # Keras 2 has an error for a model that is not.
        with suppress(ValueError):
            yield from layer.variables


def _strategy_of_optimizer(model: Any) -> Any:
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "_distribution_strategy", None)


def _check_optimizer(model: Any, strategy: Any) -> None:
    own = _strategy_of_optimizer(model)
    if own is not None and own is not strategy:
        raise ValueError(
            "The optimizer was not made in the scope of the PopDistStrategy of the "
            f"model. {_SCOPE}"
        )
    optimizer = model.optimizer
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps:
        raise NotImplementedError(
            f"The optimizer's gradient_accumulation_steps is {steps}, which TensorFlow "
            "cannot do under strategies. Leave it out, import tensorflow.python.ipu, "
            f"and call model.set_gradient_accumulation_options({steps})."
        )
