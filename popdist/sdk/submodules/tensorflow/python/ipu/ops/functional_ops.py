"""Functions that an IPU compiles once for several places."""

from collections.abc import Callable
from functools import wraps
from typing import Any

Function = Callable[..., Any]


def outlined_function(
    func: Function | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """Decorate a function; here each call has separate operations.

    Args:
        func: The function; None if the decorator has options.
        unique_sharding: Whether it runs on one IPU.
        keep_input_layouts: Whether an IPU copies its inputs.
        name: Its name.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    return decorate if func is None else decorate(func)


# Its name in older releases.
function = outlined_function
