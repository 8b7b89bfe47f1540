"""The types of requests and replies for msgspec: V-IPU's dataclasses, with limits.

A request with an unknown field is refused. Texts, numbers and lists are limited to
sizes that a database and a reader of JSON hold without loss. The description in OpenAPI
is made from the same types.
"""

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import GenericAlias
from typing import Annotated, Any

import msgspec

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.inventory.interface import Operation
from poprun.vipu.wire import LATEST, LEAST_NUMBER, MOST_NUMBER, items_of, optional_of
from poprun.words import printable

MOST_CHARACTERS = 1024
MOST_ITEMS = 16384
_LIMITS = {
    str: msgspec.Meta(max_length=MOST_CHARACTERS),
    int: msgspec.Meta(ge=LEAST_NUMBER, le=MOST_NUMBER),
    float: msgspec.Meta(ge=0, le=LATEST),
}
# The sentence about an invalid request may quote it.
_MOST_QUOTED = 200


@cache
def limited(kind: Any) -> Any:
    """Return a type with limits; a dataclass becomes a struct of msgspec."""
    if kind in _LIMITS:
        return Annotated[kind, _LIMITS[kind]]
    if isinstance(kind, type) and is_dataclass(kind):
        parts: Any = fields(kind)
        parts = [(each.name, limited(each.type), *_default_of(each)) for each in parts]
        return msgspec.defstruct(
            kind.__name__, parts, kw_only=True, forbid_unknown_fields=True
        )
    if other := optional_of(kind):
        return limited(other) | None
    if item := items_of(kind):
        items = GenericAlias(tuple, (limited(item), ...))
        return Annotated[items, msgspec.Meta(max_length=MOST_ITEMS)]
    return kind


def _default_of(field: Any) -> tuple[Any, ...]:
    return () if field.default is MISSING else (field.default,)


def read_arguments(operation: Operation[..., Any], body: bytes) -> dict[str, Any]:
    """Return the arguments of an operation from the body of a request.

    Raises:
        VipuRuleError: They are not valid.
    """
    kind = operation.arguments
    try:
        request = msgspec.json.decode(body, type=limited(kind))
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        problem = printable(" ".join(str(error).split()))[:_MOST_QUOTED]
        raise VipuRuleError(
            f"The request for {operation.name} is not valid: {problem}."
        ) from error
    return vars(msgspec.convert(request, kind, from_attributes=True))
