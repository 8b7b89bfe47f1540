"""The schema of a server's requests and replies, in OpenAPI 3.1. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from poprun import __version__
from poprun.vipu.errors import BY_CODE
from poprun.vipu.inventory.interface import OF_ADMINS, OF_HOLDERS
from poprun.vipu.server.operations import Operation

STATUS = {
    "invalid": 400,
    "denied": 403,
    "not_found": 404,
    "exists": 409,
    "no_space": 409,
    "in_use": 409,
    "not_active": 409,
    "mismatch": 409,
    "no_device": 409,
    "lease_ended": 410,
    "internal": 500,
    "unavailable": 503,
    "timeout": 503,
}
_OTHER_REFUSALS = (401, 408, 413, 415)
_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"


# Why a request is not granted.
Refusal = msgspec.defstruct(
    "Refusal",
    [("code", Literal[tuple(BY_CODE)]), ("message", str)],
    forbid_unknown_fields=True,
)


def document(operations: Mapping[str, Operation], *, secure: bool) -> dict[str, Any]:
    """Return the schema of a server with these operations."""
    kinds = [kind for o in operations.values() for kind in (o.arguments, o.result)]
    schemas, components = msgspec.json.schema_components(
        [*kinds, Refusal], ref_template=_REFERENCE
    )
    paths = {}
    for number, operation in enumerate(operations.values()):
        asked, result = schemas[2 * number : 2 * number + 2]
        for area in ("user", "admin"):
            if area == "user" and operation.name in OF_ADMINS:
                continue
            described = _operation(operation, area, asked, result, schemas[-1])
            if secure and operation.name not in (*OF_HOLDERS, "check_access"):
                described["security"] = [{"accessKey": []}]
            paths[f"/{area}/{operation.name}"] = {"post": described}
    components_object: dict[str, Any] = {"schemas": components}
    if secure:
        components_object["securitySchemes"] = {
            "accessKey": {
                "type": "http",
                "scheme": "basic",
                "description": "The name of a user, and the user's access key.",
            }
        }
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
        "components": components_object,
    }


def _operation(
    operation: Operation, area: str, asked: Any, result: Any, refusal: Any
) -> dict[str, Any]:
    summary, _, description = operation.summary.partition("\n")
    statuses = sorted({*STATUS.values(), *_OTHER_REFUSALS})
    refusals = {
        str(status): {
            "description": "Refused; the message says why.",
            "content": {_JSON: {"schema": refusal}},
        }
        for status in statuses
    }
    return {
        "operationId": f"{area}_{operation.name}",
        "tags": [area],
        "summary": summary,
        "description": description.strip(),
        "requestBody": {"required": True, "content": {_JSON: {"schema": asked}}},
        "responses": {
            "200": {
                "description": "Done.",
                "content": {_JSON: {"schema": result}},
            },
            **refusals,
        },
    }
