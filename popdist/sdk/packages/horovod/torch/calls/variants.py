"""The variants of a call: on one tensor, asynchronous, in place."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from torch import Tensor

from ...common.calls.submission import HorovodHandle


# Any: both have the arguments of the call that is given.
def of_one_tensor(grouped: Callable[..., Any]) -> Callable[..., Any]:
    """Return a grouped call without `grouped_` in its name, for one tensor."""

    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        results = grouped([tensor], *args, **kwargs)
        return results.first() if isinstance(results, HorovodHandle) else results[0]

    original = signature(grouped)
    tensors, *others = original.parameters.values()
    parameters = [tensors.replace(name="tensor", annotation=Tensor), *others]
    returned = HorovodHandle if original.return_annotation is HorovodHandle else Tensor
    call.__doc__ = (grouped.__doc__ or "").replace("grouped_", "")
    call.__doc__ = call.__doc__.replace(" tensors: ", " tensor: ")
    name = grouped.__name__.removeprefix("grouped_")
    _describe(call, name, grouped.__module__, parameters, returned)
    return call


# Any: as above.
def variants(
    begin: Callable[..., HorovodHandle], blocking: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return the variants of a call: asynchronous, in place, and both.

    Args:
        begin: Begins all of them. Its arguments are theirs, and by keyword in_place,
            and now: whether the call is waited for at once.
        blocking: The call that waits, and returns other tensors than it takes.
    """

    def asynchronous(*args: Any, **kwargs: Any) -> HorovodHandle:
        return begin(*args, **kwargs, in_place=False, now=False)

    def in_place(*args: Any, **kwargs: Any) -> Any:
        return begin(*args, **kwargs, in_place=True, now=True).wait()

    def asynchronous_in_place(*args: Any, **kwargs: Any) -> HorovodHandle:
        return begin(*args, **kwargs, in_place=True, now=False)

    name = blocking.__name__
    asynchronous.__doc__ = f"""Begin what {name}() does, and return a handle.

    A tensor may not be changed until synchronize() of the handle returns the result.
    """
    in_place.__doc__ = f"Do what {name}() does in place, and return what was given."
    asynchronous_in_place.__doc__ = (
        f"Begin what {name}_() does, and return a handle for synchronize()."
    )
    parameters = [
        parameter
        for parameter in signature(begin).parameters.values()
        if parameter.kind is not Parameter.KEYWORD_ONLY
    ]
    module, result = begin.__module__, signature(blocking).return_annotation
    _describe(asynchronous, f"{name}_async", module, parameters, HorovodHandle)
    _describe(in_place, f"{name}_", module, parameters, result)
    _describe(
        asynchronous_in_place, f"{name}_async_", module, parameters, HorovodHandle
    )
    return asynchronous, in_place, asynchronous_in_place


def _describe(
    call: Callable[..., Any],
    name: str,
    module: str,
    parameters: list[Parameter],
    returned: object,
) -> None:
    """Give a call the name and the signature by which help() and pickle know it."""
    call.__name__ = call.__qualname__ = name
    call.__module__ = module
    call.__signature__ = Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=returned
    )
