"""Replies of a server as V-IPU's values; a client reads them by these functions alone.

A reply is checked against the annotations when it arrives. It is shown on terminals,
so its texts are printable. Each float is a time.
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NoReturn, get_args, get_origin

# A database and a reader of JSON hold these without loss; -1 is the parent device.
LEAST_NUMBER, MOST_NUMBER = -1, 2**53 - 1
# In seconds since the epoch: a year of four digits.
LATEST = 1e11


class WireError(ValueError):
    """JSON that does not match its type."""


def from_json(kind: Any, value: Any, place: str = "") -> Any:
    """Return a value of a type from what json read.

    A dataclass is an object. Fields of a newer server are ignored.

    Args:
        place: The field, after the outer ones, for the error: `request.size`.

    Raises:
        WireError: It is none.
    """
    if item := items_of(kind):
        _check_type(value, place, list)
        return tuple(from_json(item, part, place) for part in value)
    if other := optional_of(kind):
        return None if value is None else from_json(other, value, place)
    if is_dataclass(kind):
        return _object_from(kind, value, place)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            _refuse(f"{str(value)[:40]!r} is no {kind.__name__}", place)
    _check_type(value, place, *((float, int) if kind is float else (kind or NoneType,)))
    if kind is str and not value.isprintable():
        _refuse("a text that is not printable", place)
    if kind is int and not LEAST_NUMBER <= value <= MOST_NUMBER:
        _refuse(f"a number that is not from {LEAST_NUMBER} to {MOST_NUMBER}", place)
    if kind is float and not 0 <= value <= LATEST:  # nor is NaN
        _refuse("a number of seconds that is no time", place)
    return float(value) if kind is float else value


@cache
def items_of(kind: Any) -> Any:
    """Return the type of the items of a sequence; None for any other type."""
    return get_args(kind)[0] if get_origin(kind) in (tuple, Sequence) else None


@cache
def optional_of(kind: Any) -> Any:
    """Return what a type is if it is not None; None for one that cannot be None."""
    if get_origin(kind) is not UnionType:
        return None
    (other,) = (arm for arm in get_args(kind) if arm is not NoneType)
    return other


@cache
def required_fields(kind: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass that have no defaults."""
    return tuple(each.name for each in fields(kind) if each.default is MISSING)


def _check_type(value: Any, place: str, *kinds: type) -> None:
    if type(value) not in kinds:
        _refuse(f"{kinds[0].__name__} expected, not {type(value).__name__}", place)


def _object_from(kind: Any, value: Any, place: str) -> Any:
    _check_type(value, place, dict)
    if missing := [name for name in required_fields(kind) if name not in value]:
        _refuse(f"{kind.__name__} without {missing[0]}", place)
    return kind(
        **{
            each.name: from_json(
                each.type, value[each.name], f"{place}.{each.name}".removeprefix(".")
            )
            for each in fields(kind)
            if each.name in value
        }
    )


def _refuse(problem: str, place: str) -> NoReturn:
    raise WireError(f"{problem}, at {place}" if place else problem)
