"""PopDistStrategy and its variables, which are those of popdist.tensorflow."""

from collections.abc import Callable
from typing import Any

from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.strategy.extending import extend
from popdist.tensorflow.strategy.variables import (
    IPUMirroredVariable,
    IPUSyncOnReadVariable,
)

from ..keras.model_options import add_to_models

__all__ = ["IPUMirroredVariable", "IPUSyncOnReadVariable", "PopDistStrategy"]


def _initialize(
    initialize: Callable[..., None], strategy: Any, *args: Any, **kwargs: Any
) -> None:
    """Initialize a strategy, and give Keras models the methods that it knows of."""
    initialize(strategy, *args, **kwargs)
    if strategy.extended.extends_keras:
        add_to_models()


extend(PopDistStrategy.__module__, "PopDistStrategy", "__init__", _initialize)
