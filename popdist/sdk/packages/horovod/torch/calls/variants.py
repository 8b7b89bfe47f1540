"""The variants of a call: on one tensor, asynchronous, in place."""

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Any

from torch import Tensor

from ...common.calls.submission import CallArguments, HorovodHandle
from .torch_calls import TORCH_CALLS


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
    arguments_of: Callable[..., CallArguments], blocking: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return the variants of a grouped call: asynchronous, in place, and both.

    Args:
        arguments_of: Returns the call's arguments. It has the variants' parameters,
            without the first one.
        blocking: The call that waits, and returns other tensors than it takes.
    """

    def begin(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> HorovodHandle:
        return TORCH_CALLS.begin(arguments_of(*args, **kwargs), list(tensors))

    def in_place(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        arguments = arguments_of(*args, **kwargs)
        return TORCH_CALLS.begin(
            arguments, list(tensors), in_place=True, now=True
        ).wait()

    def begin_in_place(
        tensors: Sequence[Tensor], *args: Any, **kwargs: Any
    ) -> HorovodHandle:
        arguments = arguments_of(*args, **kwargs)
        return TORCH_CALLS.begin(arguments, list(tensors), in_place=True)

    name, original = blocking.__name__, signature(blocking)
    begin.__doc__ = f"""Begin what {name}() does, and return a handle.

    A tensor may not be changed until synchronize() of the handle returns the result.
    """
    in_place.__doc__ = f"Do what {name}() does in place, and return what was given."
    begin_in_place.__doc__ = (
        f"Begin what {name}_() does, and return a handle for synchronize()."
    )
    parameters = [
        next(iter(original.parameters.values())),
        *signature(arguments_of).parameters.values(),
    ]
    module, result = blocking.__module__, original.return_annotation
    _describe(begin, f"{name}_async", module, parameters, HorovodHandle)
    _describe(in_place, f"{name}_", module, parameters, result)
    _describe(begin_in_place, f"{name}_async_", module, parameters, HorovodHandle)
    return begin, in_place, begin_in_place


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
