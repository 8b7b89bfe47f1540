"""Mistakes with models of Keras and strategies, which fit names before it trains."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from popdist.errors import MismatchError
from popdist.replicated.lone_training import told
from popdist.tensorflow.extending import extends
from popdist.tensorflow.keras_training import strategy_of
from popdist.tensorflow.strategy.extended import (
    PopDistExtended,
    is_popdist,
    uses_popdist,
)

logger = logging.getLogger("popdist.tensorflow")

# The model that fit trains, in the running call.
_IN_FIT: ContextVar[Any] = ContextVar("popdist.fit", default=None)
# The engine's error for instances that make different calls.
_MISMATCH = re.compile(r"Tensor layouts did not match.*?in the same order\.", re.DOTALL)
_ALIKE = (
    "Callbacks have to decide alike on all instances: by the logs, which cover all "
    "replicas, or by a value that popdist.tensorflow.broadcast shares."
)
_SCOPE = "Make the model and the optimizer within `with strategy.scope():`."


@extends("TensorFlowTrainer.fit", "Model.fit")
def checked_fit(fit: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Check a model, and train it.

    Args:
        fit: Trains the model.
        model: The model, which is followed by the arguments of fit.
    """
    own = strategy_of(model)
    if is_popdist(own):
        _check_optimizer(model, own)
        named = dict(zip(("x", "y"), args, strict=False)) | kwargs
        x, y = named.get("x"), named.get("y")
        own.extended.compare_data(x if y is None else (x, y))
    else:
        _check_scope(model)
        if own is None and PopDistExtended.trains is False:
            logger.warning(
                "The model %s was not created in the scope of the PopDistStrategy, so "
                "each instance trains a separate model. %s",
                model.name,
                _SCOPE,
            )
            told.set()
    token = _IN_FIT.set(model)
    try:
        return fit(model, *args, **kwargs)
    except (tf.errors.UnknownError, MismatchError) as error:
        found = _MISMATCH.search(str(error))
        if found is None or not is_popdist(own):
            raise
        raise MismatchError(
            "The instances do not train alike: one has stopped and another makes a "
            f"step, or their models or data differ. {_ALIKE} {found[0]}"
        ) from error
    finally:
        _IN_FIT.reset(token)


def _check_scope(model: Any) -> None:
    if uses_popdist() or any(map(is_popdist, _strategies_of_parts(model))):
        raise ValueError(
            "The model was not made in the scope of the PopDistStrategy in which it is "
            f"compiled or trained, so the replicas do not share it. {_SCOPE}"
        )


@extends("CallbackList.on_train_begin")
def begin_alike(
    begin: Callable[..., None], callbacks: Any, *args: Any, **kwargs: Any
) -> None:
    """Begin a training, in which all instances make the same epochs.

    A callback of Keras 3 restores a backup, and sets the epoch with which fit begins.
    """
    begin(callbacks, *args, **kwargs)
    members = _members_in_fit(callbacks)
    if members is None:
        return
    # Keras 3 alone has an epoch that callbacks set.
    first = getattr(callbacks.model, "_initial_epoch", None) or 0
    # A list of callbacks that the program has made may know no parameters.
    params = getattr(callbacks, "params", None) or {}
    own = first, params.get("epochs") or 0
    epochs, counts = map(members.gather, own)
    if len(set(epochs)) > 1:
        raise ValueError(
            f"The instances begin with the epochs {epochs}, from instance 0 on: not "
            "all have restored the same backup. Give all of them a BackupAndRestore "
            "with a folder that all hosts share, or copy it to each host."
        )
    if len(set(counts)) > 1:
        raise ValueError(
            f"epochs of fit is {counts}, from instance 0 on, but must be the same on "
            "all instances."
        )


@extends("CallbackList.on_train_batch_end")
def stop_alike(
    end: Callable[..., None], callbacks: Any, *args: Any, **kwargs: Any
) -> None:
    """End a step, after which all instances stop, or none does."""
    end(callbacks, *args, **kwargs)
    # Instances that go on do not call this: their next step does not match this call.
    if _members_in_fit(callbacks) and callbacks.model.stop_training:
        _check_decisions(callbacks)


@extends("CallbackList.on_epoch_end")
def decide_alike(
    end: Callable[..., None], callbacks: Any, *args: Any, **kwargs: Any
) -> None:
    """End an epoch, after which all instances go on alike."""
    end(callbacks, *args, **kwargs)
    _check_decisions(callbacks)


def _check_decisions(callbacks: Any) -> None:
    members = _members_in_fit(callbacks)
    if members is None:
        return
    model = callbacks.model
    own = [float(bool(model.stop_training)), _learning_rate(model.optimizer)]
    stops, rates = zip(*members.gather_floats(own), strict=True)
    if len(set(stops)) > 1:
        found = f"stop_training is {[bool(each) for each in stops]}"
    elif len(set(map(repr, rates))) > 1:
        found = f"the learning rate is {[*rates]}"
    else:
        return
    raise MismatchError(
        f"The instances would train apart: {found}, from instance 0 on. {_ALIKE}"
    )


def _members_in_fit(callbacks: Any) -> Any:
    """Return the instances that fit trains a model on; None for one or outside of fit.

    In a loop of the program's own, one instance may call its callbacks alone.
    """
    # A list without a model has none in Keras 2.
    model = getattr(callbacks, "model", None)
    if model is None or model is not _IN_FIT.get():
        return None
    strategy = model.distribute_strategy
    if not is_popdist(strategy):
        return None
    members = strategy.extended.members
    return None if members.instances is None else members


def _learning_rate(optimizer: Any) -> float:
    """Return an optimizer's learning rate; 0 for one that has none, or a schedule."""
    rate = getattr(optimizer, "learning_rate", None)
    # A schedule of Keras 2 is a function.
    return 0.0 if rate is None or callable(rate) else float(tf.convert_to_tensor(rate))


def _strategies_of_parts(model: Any) -> list[Any]:
    """Return the strategies of a model's optimizer and variables; None for none."""
    # Keras 3's variables have TensorFlow's as values.
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
