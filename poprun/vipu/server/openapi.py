"""The schema of a server's requests and replies, in OpenAPI 3.1. Pure."""

import inspect
from collections.abc import Iterable
from enum import Enum
from typing import Any

from poprun import __version__
from poprun.vipu import wire
from poprun.vipu.errors import BY_CODE
from poprun.vipu.inventory.interface import OF_ADMINS, WITHOUT_ACCESS_KEY
from poprun.vipu.operations import Operation

_CODES = {
    400: ("invalid",),
    403: ("denied",),
    404: ("not_found",),
    409: ("exists", "no_space", "in_use", "not_active", "mismatch", "no_device"),
    410: ("lease_ended",),
    500: ("internal",),
    503: ("unavailable", "timeout"),
}
# The HTTP status of a refusal, by its code.
STATUS = {code: status for status, codes in _CODES.items() for code in codes}
_OTHER_REFUSALS = (401, 413, 415)
_JSON = "application/json"
_NUMBERS = {"minimum": wire.LEAST_NUMBER, "maximum": wire.MOST_NUMBER}
_SCALARS: dict[Any, dict[str, Any]] = {
    None: {"type": "null"},
    bool: {"type": "boolean"},
    str: {"type": "string", "maxLength": wire.MOST_CHARACTERS},
    int: {"type": "integer", **_NUMBERS},
    float: {"type": "number", "minimum": 0, "maximum": wire.LATEST},
}
# The schema of a refusal.
_REFUSAL = {
    "title": "Refusal",
    "type": "object",
    "properties": {"code": {"enum": sorted(BY_CODE)}, "message": {"type": "string"}},
    "required": ["code", "message"],
    "additionalProperties": False,
}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {_JSON: {"schema": schema}}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_REFUSED = {
    "description": "Refused; the message says why.",
    "content": _content(_reference("Refusal")),
}


def document(operations: Iterable[Operation], *, secure: bool) -> dict[str, Any]:
    """Return the schema of a server with these operations."""
    components: dict[str, Any] = {"Refusal": _REFUSAL}
    paths = {}
    for operation in operations:
        for area in ("user", "admin"):
            if area == "user" and operation.name in OF_ADMINS:
                continue
            described = _operation(operation, area, components)
            if secure and operation.name not in WITHOUT_ACCESS_KEY:
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
        "components": {"schemas": components, **schemes},
    }


def _operation(
    operation: Operation, area: str, components: dict[str, Any]
) -> dict[str, Any]:
    text = operation.description or operation.name.replace("_", " ").capitalize() + "."
    summary, _, description = inspect.cleandoc(text).partition("\n")
    responses = {str(status): _REFUSED for status in (*_CODES, *_OTHER_REFUSALS)}
    result = _content(_schema(operation.result, components))
    responses["200"] = {"description": "Done.", "content": result}
    arguments = _content(_schema(operation.arguments, components))
    return {
        "operationId": f"{area}_{operation.name}",
        "tags": [area],
        "summary": summary,
        "description": description.strip(),
        "requestBody": {"required": True, "content": arguments},
        "responses": responses,
    }


def _schema(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what `wire` reads and writes of a type.

    Args:
        kind: The type.
        components: By name, those of enumerations and dataclasses; it adds to them.
    """
    if kind in _SCALARS:
        return _SCALARS[kind]
    if item := wire.items_of(kind):
        items = _schema(item, components)
        return {"type": "array", "items": items, "maxItems": wire.MOST_ITEMS}
    if other := wire.optional_of(kind):
        return {"anyOf": [_schema(other, components), _SCALARS[None]]}
    name = kind.__name__
    if issubclass(kind, Enum):
        components[name] = {"title": name, "enum": [member.value for member in kind]}
    elif name not in components:
        fields = kind.__annotations__.items()
        components[name] = {
            "title": name,
            "type": "object",
            "properties": {field: _schema(part, components) for field, part in fields},
            "required": list(wire.required_fields(kind)),
            "additionalProperties": False,
        }
    return _reference(name)
