"""The schema of a server's requests and replies, in OpenAPI 3.1. Pure."""

import inspect
from collections.abc import Iterable
from typing import Any

import msgspec

from poprun import __version__
from poprun.vipu.errors import BY_CODE
from poprun.vipu.inventory.interface import Operation
from poprun.vipu.server.request_types import limited

# The codes of refusals, by HTTP status.
CODES = {
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
# Refusals of requests that are not valid in HTTP.
_OTHER_REFUSALS = (413, 415)
# The schema of a refusal.
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
    kinds = [limited(each.arguments) for each in operations]
    kinds += [limited(each.result) for each in operations]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    paths = {}
    for number, operation in enumerate(operations):
        request, result = schemas[number], schemas[number + len(operations)]
        for area in ("user", "admin"):
            if area == "user" and operation.is_for_admins:
                continue
            described = _operation(operation, area, request, result)
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
    operation: Operation[..., Any],
    area: str,
    request: dict[str, Any],
    result: dict[str, Any],
) -> dict[str, Any]:
    text = operation.description or operation.name.replace("_", " ").capitalize() + "."
    summary, _, description = inspect.cleandoc(text).partition("\n")
    refused = {
        "description": "Refused; the message says why.",
        "content": _content({"$ref": "#/components/schemas/Refusal"}),
    }
    done = {"description": "Done.", "content": _content(result)}
    refusals = {str(status): refused for status in (*CODES, *_OTHER_REFUSALS)}
    return {
        "operationId": f"{area}_{operation.name}",
        "tags": [area],
        "summary": summary,
        "description": description.strip(),
        "requestBody": {"required": True, "content": _content(request)},
        "responses": {"200": done, **refusals},
    }


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
