"""Keras models, layers and optimizers for IPUs: tf.keras's, with options."""

import sys
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import wrapt

from . import optimizers as optimizers
from .models import Model, PipelineModel, PipelineSequential, PipelineStage, Sequential

# The modules that programs have as keras, tf_keras and tf.keras.
_KERASES = (
    "keras",
    "keras._tf_keras.keras",
    "tensorflow.keras",
    "tf_keras",
    "tf_keras.api._v2.keras",
)


def _add_to_keras(package: ModuleType) -> None:
    """Give a Keras this package as `ipu`, which Graphcore's Keras has."""
    package.ipu = sys.modules[__name__]  # type: ignore[attr-defined]


class _ModulesOfKeras(Loader):
    """Finds the modules of this package as modules of a Keras's `ipu`."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Return a spec for a module of this package by another name."""
        keras, _, module = name.rpartition(".ipu.")
        if keras in _KERASES and find_spec(f"{__name__}.{module}"):
            return ModuleSpec(name, self)
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Replace a new module by the one of this package."""
        _, _, name = module.__name__.rpartition(".")
        sys.modules[module.__name__] = import_module(f"{__name__}.{name}")


# Before Python's own finder, which would load the files a second time.
sys.meta_path.insert(0, _ModulesOfKeras())
for _name in _KERASES:
    sys.modules[f"{_name}.ipu"] = sys.modules[__name__]
    wrapt.register_post_import_hook(_add_to_keras, _name)


def __getattr__(name: str) -> ModuleType:
    """Import the layers when they are asked for: they import Keras, in seconds."""
    if name == "layers":
        return import_module(f"{__name__}.layers")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
