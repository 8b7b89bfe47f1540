"""Calls on one tensor, made of those on several."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import Tensor

from .submission import HorovodHandle


# Any: both have the arguments of the call that is given.
def of_one_tensor(grouped: Callable[..., Any]) -> Callable[..., Any]:
    """Return a grouped call without `grouped_` in its name, for one tensor."""

    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        results = grouped([tensor], *args, **kwargs)
        return results.first() if isinstance(results, HorovodHandle) else results[0]

    original = signature(grouped)
    tensors, *others = original.parameters.values()
    returned = HorovodHandle if original.return_annotation is HorovodHandle else Tensor
    call.__signature__ = original.replace(  # type: ignore[attr-defined]
        parameters=[tensors.replace(name="tensor", annotation=Tensor), *others],
        return_annotation=returned,
    )
    call.__name__ = call.__qualname__ = grouped.__name__.removeprefix("grouped_")
    call.__module__ = grouped.__module__
    call.__doc__ = (grouped.__doc__ or "").replace("grouped_", "")
    call.__doc__ = call.__doc__.replace(" tensors: ", " tensor: ")
    return call
