"""What can be asked of a server: the methods of the inventory, as they are declared.

Parameters and results, checks and documentation follow from `inventory.interface`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.inventory.interface import Inventory, operation_names

# What a database and a reader of JSON hold without loss; -1 is the parent device.
_WHOLE = Annotated[int, msgspec.Meta(ge=-1, le=2**53 - 1)]
_TEXT = Annotated[str, msgspec.Meta(max_length=1024)]
_MOST_ITEMS = 16384


class Operation(NamedTuple):
    """One method of the inventory, to be called through the network."""

    name: str
    summary: str
    # The object with its arguments, for reading and for the schema.
    arguments: type[msgspec.Struct]
    result: Any
    read: Callable[[bytes], dict[str, Any]]


def operations() -> Mapping[str, Operation]:
    """Return all operations, by name."""
    return {name: _operation(name) for name in operation_names()}


def _operation(name: str) -> Operation:
    method = getattr(Inventory, name)
    signature = inspect.signature(method)
    kinds = {
        parameter.name: parameter.annotation
        for parameter in list(signature.parameters.values())[1:]
    }
    arguments = _struct(
        "".join(map(str.capitalize, name.split("_"))),
        kinds,
        {
            parameter.name: parameter.default
            for parameter in signature.parameters.values()
            if parameter.default is not parameter.empty
        },
    )
    decoder = msgspec.json.Decoder(arguments)
    builders = [(key, _builder(kind)) for key, kind in kinds.items()]

    def read(body: bytes) -> dict[str, Any]:
        try:
            found = decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise VipuRuleError(f"The request for {name} is not valid: {error}.") from (
                error
            )
        return {key: build(getattr(found, key)) for key, build in builders}

    summary = inspect.getdoc(method) or name.replace("_", " ").capitalize() + "."
    return Operation(
        name=name,
        summary=summary,
        arguments=arguments,
        result=wire_type(signature.return_annotation),
        read=read,
    )


@cache
def wire_type(kind: Any) -> Any:
    """Return the type as which a value is sent: a struct for a named tuple."""
    if kind is int:
        return _WHOLE
    if kind is str:
        return _TEXT
    origin = get_origin(kind)
    if origin in (tuple, Sequence):
        items = tuple[wire_type(get_args(kind)[0]), ...]  # type: ignore[misc,valid-type]
        return Annotated[items, msgspec.Meta(max_length=_MOST_ITEMS)]
    if origin is UnionType:
        (other,) = (arm for arm in get_args(kind) if arm is not type(None))
        return wire_type(other) | None
    if _is_named_tuple(kind):
        return _struct(kind.__name__, kind.__annotations__, kind._field_defaults)
    return kind


def _struct(
    name: str, kinds: Mapping[str, Any], defaults: Mapping[str, Any]
) -> type[msgspec.Struct]:
    fields = [
        (key, wire_type(kind), defaults[key])
        if key in defaults
        else (key, wire_type(kind))
        for key, kind in kinds.items()
    ]
    return msgspec.defstruct(
        name, fields, forbid_unknown_fields=True, kw_only=True, frozen=True
    )


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of a type from what was read as its wire type."""
    origin = get_origin(kind)
    if origin in (tuple, Sequence):
        build_item = _builder(get_args(kind)[0])
        return lambda value: tuple(map(build_item, value))
    if origin is UnionType:
        (other,) = (arm for arm in get_args(kind) if arm is not type(None))
        build = _builder(other)
        return lambda value: None if value is None else build(value)
    if _is_named_tuple(kind):
        fields = [(key, _builder(part)) for key, part in kind.__annotations__.items()]
        return lambda value: kind(
            *(build_field(getattr(value, key)) for key, build_field in fields)
        )
    return _unchanged


def _unchanged(value: Any) -> Any:
    return value


def _is_named_tuple(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, tuple)
        and not issubclass(kind, Enum)
        and hasattr(kind, "_fields")
    )
