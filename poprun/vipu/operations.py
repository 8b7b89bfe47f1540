"""Operations of an inventory as data: a function in a transaction, its name and rights.

A class with operations has a method for each of them. The method binds its arguments
and performs the operation, here or behind a server. Requests to a server, their
documentation and the options of the commands are made from the same operations.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, field, make_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from poprun.vipu.inventory.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")


class Operations:
    """The base of classes that perform operations."""

    def _perform(self, kind: Any, operation: str, **arguments: Any) -> Any:
        """Perform an operation by its name, and return its result, of that kind."""
        raise NotImplementedError(operation)


class Operation(Generic[P, T]):
    """One operation; in an object that performs it, a method.

    Args:
        body: Performs it in a transaction of a database.
        is_for_admins: Whether users may not perform it.
        needs_key: Whether a server with access keys requires one.
    """

    def __init__(
        self,
        body: "Callable[Concatenate[Transaction, P], T]",
        *,
        is_for_admins: bool = False,
        needs_key: bool = True,
    ) -> None:
        self.body = body
        self.is_for_admins = is_for_admins
        self.needs_key = needs_key

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, performer: Operations | None, owner: type) -> Callable[P, T]:
        if performer is None:
            return cast(Callable[P, T], self)

        def perform(*args: P.args, **kwargs: P.kwargs) -> T:
            arguments = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in vars(self.arguments(*args, **kwargs)).items()
            }
            kind = self.result or type(None)
            result: T = performer._perform(kind, self.name, **arguments)
            return result

        return perform

    @property
    def description(self) -> str:
        """The docstring of its function."""
        return self.body.__doc__ or ""

    @cached_property
    def arguments(self) -> Any:
        """A dataclass of its arguments."""
        _, *parameters = inspect.signature(self.body).parameters.values()
        fields = []
        for each in parameters:
            default = MISSING if each.default is each.empty else each.default
            fields.append((each.name, each.annotation, field(default=default)))
        kind = "".join(map(str.capitalize, self.name.split("_")))
        return make_dataclass(kind, fields, frozen=True)

    @property
    def result(self) -> Any:
        return self.body.__annotations__["return"]
