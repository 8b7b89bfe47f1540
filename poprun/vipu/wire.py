"""V-IPU's values as JSON and back: a named tuple is an object, an enumeration a word.

What comes back is checked against the annotations, so that a reply that is no such
value is noticed where it arrives. Texts are shown on terminals and numbers counted
with, so texts are printable, integers have 64 bits, and each float is a time.
"""

from collections.abc import Callable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

_MOST_BITS = 63
# In seconds since the epoch: a year of four digits.
_LATEST = 1e11


class WireError(ValueError):
    """JSON that is not the value that it should be."""


def to_json(value: Any) -> Any:
    """Return what json writes of a value."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is None:
            return [to_json(item) for item in value]
        return {name: to_json(item) for name, item in zip(fields, value, strict=True)}
    if isinstance(value, Enum):
        return value.value
    return value


def from_json(kind: Any, value: Any) -> Any:
    """Return a value of a type from what json read.

    Raises:
        WireError: It is none.
    """
    return _reader(kind)(value)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    if kind in (NoneType, None):
        return _plain(NoneType)
    if kind is bool:
        return _plain(kind)
    if kind is str:
        return _read_str
    if kind is int:
        return _read_int
    if kind is float:
        return _read_float
    if get_origin(kind) is tuple:
        return _tuple_of(_reader(get_args(kind)[0]))
    if get_origin(kind) is UnionType:
        (other,) = (arm for arm in get_args(kind) if arm is not NoneType)
        read = _reader(other)
        return lambda value: None if value is None else read(value)
    if issubclass(kind, Enum):
        return _member_of(kind)
    return _named_tuple(kind)


def _plain(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise WireError(f"{kind.__name__} expected, not {type(value).__name__}")
        return value

    return read


_read_any_str = _plain(str)
_read_any_int = _plain(int)


def _read_str(value: Any) -> str:
    text: str = _read_any_str(value)
    if not text.isprintable():
        raise WireError("a text that is not printable")
    return text


def _read_int(value: Any) -> int:
    number: int = _read_any_int(value)
    if number.bit_length() > _MOST_BITS:
        raise WireError(f"a number of more than {_MOST_BITS} bits")
    return number


def _read_float(value: Any) -> float:
    if type(value) not in (int, float):
        raise WireError(f"number expected, not {type(value).__name__}")
    if not 0 <= value <= _LATEST:  # nor is NaN
        raise WireError("a number of seconds that is no time")
    return float(value)


def _tuple_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_all(value: Any) -> Any:
        if type(value) is not list:
            raise WireError(f"list expected, not {type(value).__name__}")
        return tuple(map(read, value))

    return read_all


def _member_of(kind: type[Enum]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise WireError(f"{str(value)[:40]!r} is no {kind.__name__}") from None

    return read


def _named_tuple(kind: Any) -> Callable[[Any], Any]:
    readers = {
        name: _reader(annotation) for name, annotation in kind.__annotations__.items()
    }
    defaults = kind._field_defaults

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise WireError(f"object expected, not {type(value).__name__}")
        missing = readers.keys() - value.keys() - defaults.keys()
        if missing:
            raise WireError(f"{kind.__name__} without {', '.join(sorted(missing))}")
        # What a newer server adds is left out.
        return kind(
            **{
                name: read_field(value[name])
                for name, read_field in readers.items()
                if name in value
            }
        )

    return read
