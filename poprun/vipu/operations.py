"""Operations as data, from methods as they are declared; `performed` performs them.

`inventory.interface` has the declarations. Requests to a server, their documentation
and the options of the commands are made from them.
"""

from collections.abc import Callable
from dataclasses import make_dataclass
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Operation(NamedTuple):
    """One method of the inventory, to be called through the network."""

    name: str
    # The docstring of the method.
    description: str
    # A dataclass of its arguments.
    arguments: Any
    result: Any


class Operations:
    """The base of classes that perform operations."""

    def _perform(self, kind: type[T], operation: str, **arguments: Any) -> T:
        """Perform an operation by its name, and return its result, of that kind."""
        raise NotImplementedError(operation)


def performed(area: type[T]) -> type[T]:
    """Let each method of a class perform the operation of its name."""
    for name, method in list(vars(area).items()):
        if not name.startswith("_"):
            setattr(area, name, _performing(method))
    return area


def _performing(method: Any) -> Callable[..., Any]:
    @wraps(method)
    def perform(self: Operations, *values: Any, **named: Any) -> Any:
        operation = operation_of(method)
        bound = operation.arguments(*values, **named)
        arguments = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in vars(bound).items()
        }
        kind = operation.result or type(None)
        return self._perform(kind, operation.name, **arguments)

    return perform


@cache
def operation_of(method: Any) -> Operation:
    """Return the operation that a method declares; keywords alone have defaults."""
    # Without inspect, which takes 10 ms to import.
    name, code = method.__name__, method.__code__
    defaults = [*(method.__defaults__ or ()), *(method.__kwdefaults__ or {}).values()]
    parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    kind = "".join(map(str.capitalize, name.split("_")))
    annotations = method.__annotations__
    num_required = len(parameters) - len(defaults)
    arguments: Any = make_dataclass(
        kind,
        [(each, annotations[each]) for each in parameters],
        namespace=dict(zip(parameters[num_required:], defaults, strict=True)),
        frozen=True,
    )
    return Operation(name, method.__doc__ or "", arguments, annotations["return"])
