"""Changes to functions of TensorFlow and Keras, which know neither popdist nor Horovod.

Importing it checks the names in popdist.framework_names, or lets later imports of a
Keras check them.
"""

import sys
from collections.abc import Callable
from functools import reduce, wraps
from types import ModuleType
from typing import Any, TypeVar

import wrapt

from popdist.framework_names import KERAS, TENSORFLOW, TF_KERAS, FrameworkNames

Around = TypeVar("Around", bound=Callable[..., Any])

_TABLES = {table.package: table for table in (TENSORFLOW, KERAS, TF_KERAS)}


def extend(path: str, around: Callable[..., Any]) -> None:
    """Replace functions by others around them, once their modules are imported.

    Args:
        path: A function, as in popdist.framework_names, but without its module: both
            Kerases' functions of one name are replaced.
        around: Is called with the function and the arguments of each call.
    """
    names = [
        (table, name)
        for table in _TABLES.values()
        for name in table.names
        if name.partition(":")[2] == path
    ]
    if not names:
        raise LookupError(f"{path} is not in popdist.framework_names. Add it there.")
    if len({table.package for table, _ in names}) < len(names):
        raise LookupError(
            f"{path} is in popdist.framework_names more than once for one package: "
            f"{', '.join(name for _, name in names)}. "
            "Let extend() tell them apart by their modules."
        )
    for table, name in names:
        _extend_one(table, name, around)


def _extend_one(table: FrameworkNames, name: str, around: Callable[..., Any]) -> None:
    module_name, _, path = name.partition(":")

    def replace() -> None:
        table.check_name(name)
        *classes, last = path.split(".")
        owner: Any = reduce(getattr, classes, sys.modules[module_name])
        original = vars(owner)[last]

        @wraps(original)
        def extended(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, last, extended)

    # After the package, so that its own modules have imported the original functions.
    wrapt.register_post_import_hook(
        lambda _: _call_at_import(module_name, replace), table.package
    )


def extends(*paths: str) -> Callable[[Around], Around]:
    """Return a decorator of a function that extends others: see extend()."""

    def register(around: Around) -> Around:
        for path in paths:
            extend(path, around)
        return around

    return register


def _call_at_import(module_name: str, hook: Callable[[], None]) -> None:
    """Call a function when a module is imported, and anew if it raises ImportError."""
    is_later = module_name not in sys.modules

    def call(_: ModuleType) -> None:
        try:
            hook()
        except ImportError:
            if is_later:
                # A program may catch the error, and import the module again.
                del sys.modules[module_name]
                wrapt.register_post_import_hook(call, module_name)
            raise

    wrapt.register_post_import_hook(call, module_name)


for _table in _TABLES.values():
    _call_at_import(_table.package, _table.check)
