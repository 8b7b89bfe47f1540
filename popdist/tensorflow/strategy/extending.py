"""Changes to functions of TensorFlow and Keras, which know neither popdist nor Horovod.

Each module of popdist that extends a function does so once.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def extend(
    module_name: str, class_name: str, name: str, around: Callable[..., Any]
) -> None:
    """Replace a function of a module that is imported by one around it, once for all.

    Args:
        class_name: The class whose method it is; empty for a function of the module.
        around: Is called with the function and the arguments of each call.
    """
    # Any: TensorFlow and Keras declare no types.
    owner: Any = sys.modules.get(module_name)
    if class_name:
        owner = getattr(owner, class_name, None)
    # None has methods, too.
    original = None if owner is None else getattr(owner, name, None)
    extenders = getattr(original, "popdist_extenders", ())
    extender = getattr(around, "func", around).__module__
    if original is None or extender in extenders:
        return

    @wraps(original)
    def extended(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    extended.popdist_extenders = (*extenders, extender)  # type: ignore[attr-defined]
    setattr(owner, name, extended)
