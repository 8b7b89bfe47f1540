"""Changes to functions of TensorFlow and Keras, which know neither popdist nor Horovod.

Importing it checks the names in popdist.framework_names, or lets later imports of a
Keras check them.
"""

import sys
from collections.abc import Callable
from functools import reduce, wraps
from types import ModuleType
from typing import Any

import wrapt

from popdist.framework_names import KERAS, TENSORFLOW, TF_KERAS, FrameworkNames

_TABLES = {table.package: table for table in (TENSORFLOW, KERAS, TF_KERAS)}


def extend(name: str, around: Callable[..., Any]) -> None:
    """Replace a function by one around it, once its module is imported.

    Args:
        name: The function, which stands in popdist.framework_names.
        around: Is called with the function and the arguments of each call.
    """
    module_name, _, path = name.partition(":")
    table = _TABLES[module_name.partition(".")[0]]
    if name not in table.names:
        raise LookupError(f"{name} is not in popdist.framework_names. Add it there.")

    def replace(module: ModuleType) -> None:
        *classes, last = path.split(".")
        owner: Any = reduce(getattr, classes, module)
        original = vars(owner)[last]

        @wraps(original)
        def extended(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, last, extended)

    # After the package, so that its own modules have imported the original functions.
    wrapt.register_post_import_hook(
        lambda _: wrapt.register_post_import_hook(replace, module_name), table.package
    )


def _check_at_import(table: FrameworkNames) -> None:
    is_later = table.package not in sys.modules

    def check(_: ModuleType) -> None:
        try:
            table.check()
        except ImportError:
            if is_later:
                # A program may catch the error, and import the package again.
                del sys.modules[table.package]
                wrapt.register_post_import_hook(check, table.package)
            raise

    wrapt.register_post_import_hook(check, table.package)


for _table in _TABLES.values():
    _check_at_import(_table)
