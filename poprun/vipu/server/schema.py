"""The types of a server's requests and replies, and their schema in OpenAPI 3.1. Pure.

The types are V-IPU's dataclasses for msgspec, with limits. A request with an unknown
field is refused. Texts, numbers and lists are limited to sizes that a database and a
reader of JSON hold without loss.
"""

import inspect
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import GenericAlias
from typing import Annotated, Any

import msgspec

from poprun import __version__
from poprun.vipu.errors import BY_CODE, VipuRuleError
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


# The codes of refusals, by HTTP status.
CODES = {
    413: ("invalid",),
    415: ("invalid",),
    400: ("invalid",),
    401: ("denied",),
    403: ("denied",),
    404: ("not_found",),
    409: ("exists", "no_space", "in_use", "not_active", "mismatch", "no_device"),
    410: ("lease_ended",),
    500: ("internal",),
    503: ("unavailable", "timeout"),
}
# The HTTP status of an operation's refusal, by its code: the last one with that.
STATUS = {code: status for status, codes in CODES.items() for code in codes}
_REFERENCE = {"$ref": "#/components/schemas/Refusal"}
_REFUSAL = {
    "title": "Refusal",
    "type": "object",
    "properties": {"code": {"enum": sorted(BY_CODE)}, "message": {"type": "string"}},
    "required": ["code", "message"],
    "additionalProperties": False,
}


def document(
    operations: Iterable[Operation[..., Any]], *, secure: bool
) -> dict[str, Any]:
    """Return the schema of a server with these operations."""
    operations = tuple(operations)
    kinds = [limited(kind) for o in operations for kind in (o.arguments, o.result)]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    paths = {}
    for number, operation in enumerate(operations):
        for area in ("admin",) if operation.is_for_admins else ("user", "admin"):
            pair = schemas[2 * number : 2 * number + 2]
            described = _operation(operation, area, *pair)
            if secure and operation.needs_key:
                described["security"] = [{"accessKey": []}]
            paths[f"/{area}/{operation.name}"] = {"post": described}
    access_key = {
        "type": "http",
        "scheme": "basic",
        "description": "The name of a user, and the user's access key.",
    }
    schemes = {"securitySchemes": {"accessKey": access_key}} if secure else {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "poprun's V-IPU server",
            "version": __version__,
            "description": "Each path is one operation on the inventory of emulated "
            "IPUs: /user/ for users, /admin/ for administrators, who see what belongs "
            "to all users.",
        },
        "paths": paths,
        "components": {"schemas": {"Refusal": _REFUSAL, **components}, **schemes},
    }


def _operation(
    operation: Operation[..., Any], area: str, request: Any, result: Any
) -> dict[str, Any]:
    text = operation.description or operation.name.replace("_", " ").capitalize() + "."
    summary, _, description = inspect.cleandoc(text).partition("\n")
    refused = _body("Refused; the message says why.", _REFERENCE)
    refusals = {str(status): refused for status in CODES}
    return {
        "operationId": f"{area}_{operation.name}",
        "tags": [area],
        "summary": summary,
        "description": description.strip(),
        "requestBody": {"required": True, **_body("The arguments.", request)},
        "responses": {"200": _body("Done.", result), **refusals},
    }


def _body(description: str, schema: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"description": description, "content": content}
