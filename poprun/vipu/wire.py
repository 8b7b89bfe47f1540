"""V-IPU's values as JSON and back: a dataclass is an object, an enumeration a word.

What comes is checked against the annotations, so that a request or a reply that is no
such value is noticed where it arrives. Replies are shown on terminals, so their texts
are printable; numbers are counted with, so they have 64 bits, and each float is a time.
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

# What a database and a reader of JSON hold without loss; -1 is the parent device.
LEAST_NUMBER, MOST_NUMBER = -1, 2**53 - 1
_MOST_BITS = 63
# In seconds since the epoch: a year of four digits.
LATEST = 1e11
# Of requests alone; a server says how long its replies are.
MOST_CHARACTERS = 1024
MOST_ITEMS = 16384
# What json reads of values that are no more than that.
_TYPES = {None: NoneType, NoneType: NoneType, bool: bool, str: str, int: int}


class WireError(ValueError):
    """JSON that is not the value that it should be.

    Args:
        problem: What is wrong.
        place: Of which field, from the outermost on: `request.size`.
    """

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{problem}, at {place}" if place else problem)
        self.problem = problem
        self.place = place


def to_json(value: Any) -> Any:
    """Return what json writes of a value."""
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if is_dataclass(value):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return value.value
    return value


def from_json(kind: Any, value: Any, *, of_request: bool = False) -> Any:
    """Return a value of a type from what json read.

    Args:
        kind: The type.
        value: What json read.
        of_request: Whether it has limits, and no fields but those of the type; a
            reply may have some that a newer server adds.

    Raises:
        WireError: It is none.
    """
    if kind in _TYPES:
        _check_type(value, _TYPES[kind])
        if kind is str:
            _check_text(value, of_request)
        elif kind is int:
            _check_number(value)
        return value
    if kind is float:
        _check_type(value, float, int)
        if not 0 <= value <= LATEST:  # nor is NaN
            raise WireError("a number of seconds that is no time")
        return float(value)
    if item := items_of(kind):
        _check_type(value, list)
        if of_request and len(value) > MOST_ITEMS:
            raise WireError(f"a list of more than {MOST_ITEMS} items")
        return tuple(from_json(item, part, of_request=of_request) for part in value)
    if other := optional_of(kind):
        return None if value is None else from_json(other, value, of_request=of_request)
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise WireError(f"{str(value)[:40]!r} is no {kind.__name__}") from None
    return _object_from(kind, value, of_request)


@cache
def required_fields(kind: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass that have no defaults."""
    return tuple(each.name for each in fields(kind) if each.default is MISSING)


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


def _check_type(value: Any, *kinds: type) -> None:
    if type(value) not in kinds:
        raise WireError(f"{kinds[0].__name__} expected, not {type(value).__name__}")


def _check_text(text: str, of_request: bool) -> None:
    if not of_request:
        if not text.isprintable():
            raise WireError("a text that is not printable")
    elif len(text) > MOST_CHARACTERS:
        raise WireError(f"a text of more than {MOST_CHARACTERS} characters")
    # What is printable has no surrogates, and nearly all is.
    elif not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text):
        raise WireError("a text that is not Unicode")


def _check_number(number: int) -> None:
    if number.bit_length() > _MOST_BITS:
        raise WireError(f"a number of more than {_MOST_BITS} bits")
    if not LEAST_NUMBER <= number <= MOST_NUMBER:
        raise WireError(f"a number that is not from {LEAST_NUMBER} to {MOST_NUMBER}")


def _object_from(kind: Any, value: Any, of_request: bool) -> Any:
    _check_type(value, dict)
    annotations = kind.__annotations__
    if missing := set(required_fields(kind)) - value.keys():
        raise WireError(f"{kind.__name__} without {', '.join(sorted(missing))}")
    if of_request and (unknown := value.keys() - annotations.keys()):
        raise WireError(f"{kind.__name__} has no {', '.join(sorted(unknown))[:64]!r}")
    parts = {}
    for name in annotations.keys() & value.keys():
        try:
            part = from_json(annotations[name], value[name], of_request=of_request)
        except WireError as error:
            place = f"{name}.{error.place}".removesuffix(".")
            raise WireError(error.problem, place) from None
        parts[name] = part
    return kind(**parts)
