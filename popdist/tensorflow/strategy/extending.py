"""Changes to functions of TensorFlow and Keras, which know neither popdist nor Horovod.

Each module of popdist that extends a function does so once, when it is imported.
"""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

import wrapt

# The versions of the packages with which the extensions were tried. pyproject.toml has
# the same bounds.
_TRIED = {"keras": "3.12 to 3.15", "tensorflow": "2.21", "tf_keras": "2.21"}


def extend(
    module_name: str, class_name: str, name: str, around: Callable[..., Any]
) -> None:
    """Replace a function by one around it, once its package is imported.

    Args:
        module_name: The module, which need not be imported with its package.
        class_name: The method's class; empty for a function of the module.
        around: Is called with the function and the arguments of each call.

    Raises:
        ImportError: The package has no such function. Where the package is imported
            later, each import of it raises it.
    """

    package_name = module_name.partition(".")[0]
    is_later = package_name not in sys.modules

    def replace(package: ModuleType) -> None:
        try:
            # Any: TensorFlow and Keras declare no types.
            owner: Any = import_module(module_name)
            owner = getattr(owner, class_name) if class_name else owner
            # An inherited one is not enough: the extension relies on the class's own.
            original = vars(owner)[name]
        except (AttributeError, KeyError, ModuleNotFoundError) as error:
            where = ".".join(part for part in (module_name, class_name, name) if part)
            found, tried = package.__version__, _TRIED[package.__name__]
            if is_later:
                # A program may catch the error, and import the package again.
                del sys.modules[package_name]
                wrapt.register_post_import_hook(replace, package_name)
            raise ImportError(
                f"popdist extends {where}, which {package.__name__} {found} does not "
                f"have. Install {package.__name__} {tried}, with which popdist was "
                "tried.",
                name=module_name,
            ) from error

        @wraps(original)
        def extended(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, extended)

    wrapt.register_post_import_hook(replace, package_name)
