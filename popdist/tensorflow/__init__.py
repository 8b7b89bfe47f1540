"""TensorFlow's tensors and strategies on popdist's collectives.

Importing it imports TensorFlow, and gives it a logical CPU for each local replica.
"""
# TensorFlow and both Kerases declare no types, so their objects are Any in it.

try:
    import tensorflow  # noqa: F401  (what all of its modules need)
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "popdist.tensorflow needs tensorflow, which is not installed. Install it from "
        "poprun's source folder: pip install '.[tensorflow]'",
        name="tensorflow",
    ) from None

from importlib import import_module
from typing import TYPE_CHECKING, Any

from popdist.tensorflow import keras_training  # noqa: F401  (extends fit)
from popdist.tensorflow.devices import provide_local_devices
from popdist.tensorflow.ipu_config import set_ipu_config

if TYPE_CHECKING:
    from popdist.tensorflow.host_collectives import allgather, allreduce, broadcast
    from popdist.tensorflow.strategy.popdist_strategy import PopDistStrategy

__all__ = [
    "PopDistStrategy",
    "allgather",
    "allreduce",
    "broadcast",
    "set_ipu_config",
]

provide_local_devices()


def __getattr__(name: str) -> Any:
    # Programs that only configure devices need neither these nor the engine.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    is_strategy = name == "PopDistStrategy"
    module = "strategy.popdist_strategy" if is_strategy else "host_collectives"
    try:
        return getattr(import_module(f"popdist.tensorflow.{module}"), name)
    except AttributeError as error:
        # `from popdist.tensorflow import` would say that there is no such name.
        raise ImportError(
            f"popdist.tensorflow.{name} cannot be imported: {error}"
        ) from error
