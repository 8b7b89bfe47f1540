"""Check received messages, and turn their fields into values.

Nothing that comes from another process or host is trusted: a message with a field of
another type, out of range or too long is refused. Values of several parts are JSON.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from ipaddress import ip_address
from math import isfinite
from typing import Any, get_args, get_origin

from poprun.wire import events, protocol
from poprun.wire.events import Event, HostEvent, Remains
from poprun.wire.field_types import Address, FilePath, Limit, Long, WaitStatus
from poprun.words import printable

# The last millisecond that a calendar can show, in the year 9999.
MOST_TIME = 253_402_300_799_999
_LONGEST_TEXT = 1 << 14
_LONGEST_TUPLE = 1 << 13
# The largest number of each type.
_MOST: Mapping[Any, int] = {int: (1 << 31) - 1, Long: (1 << 63) - 1}


def read(kind: int, contents: Sequence[bytes]) -> list[Any]:
    """Return the fields of a message as values.

    Raises:
        ValueError: It does not have the fields that its kind must have.
    """
    if (form := protocol.FORMS.get(kind)) is None:
        raise ValueError(f"a message of kind {kind}")
    if form.endswith("*"):
        form = form[:-1].ljust(len(contents), "t")
    return [_FIELDS[letter](f) for letter, f in zip(form, contents, strict=True)]


def _digits(field: bytes, limit: int) -> int:
    # int() takes time that grows with the square of the length.
    if not field.isdigit() or len(field) > 20 or int(field) >= limit:
        raise ValueError(f"{field[:20]!r} is not a number below {limit}")
    return int(field)


_int = partial(_digits, limit=1 << 31)
_long = partial(_digits, limit=1 << 64)


def _list(field: bytes) -> tuple[int, ...]:
    return tuple(_int(number) for number in field.split(b","))


def json_field(value: Any) -> bytes:
    """Return a JSON value as a field of a message."""
    return json.dumps(value).encode()


def pack_json(kind: int, value: Any) -> bytes:
    """Return a message with a JSON value as its only field."""
    return protocol.pack(kind, json_field(value))


def unpack_json(field: bytes) -> Any:
    """Return the value of a field that is JSON.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return json.loads(field.decode())
    except RecursionError:
        raise ValueError("a value that is nested too deeply") from None


_FIELDS: Mapping[str, Callable[[bytes], Any]] = {
    "i": _int,
    "n": _long,
    "o": lambda field: _long(field) if field else None,
    "d": partial(_digits, limit=MOST_TIME + 1),
    "l": _list,
    "m": lambda field: _list(field) if field else (),
    "t": bytes,
    "s": os.fsdecode,
    "j": unpack_json,
}


def why_supervisor_lost(name: bytes) -> str:
    """Return which of poprun's processes a message SUPERVISOR_LOST names."""
    process = "guard" if name == protocol.GUARD else "agent"
    return f"poprun's {process} there was killed"


# --- Events of hosts.


def remains(host: str, pid: int, user: int, command: bytes) -> Remains:
    """Return the event for a process that may not be signalled."""
    text = command.decode(errors="backslashreplace")
    return Remains(pid=pid, user=user, command=text, host=host)


HOST_EVENTS: Mapping[str, type[Any]] = {
    name: value
    for name, value in vars(events).items()
    if isinstance(value, type) and issubclass(value, HostEvent)
}


def pack_event(event: Event) -> bytes:
    """Return the message that tells poprun of an event on an agent's host."""
    values = (_in_range(f.type, getattr(event, f.name)) for f in fields(event))
    return pack_json(protocol.EVENT, [type(event).__name__, *values])


def _in_range(value_type: Any, value: Any) -> Any:
    """Return a value with numbers that its type can hold.

    Some are read from memory that a program may have overwritten.
    """
    if value_type == tuple[int, ...]:
        return [_in_range(int, number) for number in value]
    most = _MOST.get(value_type)
    return value if most is None else min(max(value, 0), most)


def unpack_event(value: Any) -> Event:
    """Return the event that a JSON value stands for.

    Raises:
        ValueError: It stands for none that a host may report.
    """
    try:
        class_name, *contents = value
        event_class = HOST_EVENTS[class_name]
        names = (field.name for field in fields(event_class))
        pairs = zip(names, contents, strict=True)
        event: Event = unpack_value(event_class, dict(pairs))
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{str(value)[:200]} is not an event of a host") from error
    return event


def unpack_value(value_type: Any, value: Any) -> Any:
    """Return a value of a type from JSON: a dataclass from an object with its fields.

    Args:
        value_type: A dataclass, a type of field_types.py, a tuple of one of these, or
            one of these or None. None alone stands for null.

    Raises:
        ValueError: It is of another type, or a field is missing or unknown.
    """
    if unpack := _UNPACKERS.get(value_type):
        return unpack(value)
    if is_dataclass(value_type) and isinstance(value_type, type):
        types = {field.name: field.type for field in fields(value_type)}
        if type(value) is not dict or value.keys() != types.keys():
            raise ValueError("other fields")
        return value_type(**{n: unpack_value(t, value[n]) for n, t in types.items()})
    inner, _ = get_args(value_type)
    if get_origin(value_type) is not tuple:
        return None if value is None else unpack_value(inner, value)
    if type(value) is not list or len(value) > _LONGEST_TUPLE:
        raise ValueError("a value that is not a list, or too long")
    return tuple(unpack_value(inner, item) for item in value)


def _null(value: Any) -> None:
    if value is not None:
        raise ValueError("a value that is not null")


def _number(value: Any, most: int = _MOST[int], least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(value)
    return value


def _wait_status(value: Any) -> int:
    status = _number(value, 0xFFFF)
    if not (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
        raise ValueError(value)
    return status


def _float(value: Any) -> float:
    # Not a whole number, which may be larger than any float.
    if type(value) is not float or not isfinite(value):
        raise ValueError(value)
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _LONGEST_TEXT:
        raise ValueError("text that is not a string, or too long")
    return printable(value)


def _path(value: Any) -> str:
    if type(value) is not str or len(value) > _LONGEST_TEXT or "\0" in value:
        raise ValueError("a path that is not a string, too long, or with a NUL byte")
    os.fsencode(value)  # it raises a ValueError for half a surrogate pair
    return value


def _address(value: Any) -> str:
    if value != "":
        ip_address(_text(value))
    return str(value)


def _environment(value: Any) -> dict[str, str]:
    if type(value) is not dict or not all(type(v) is str for v in value.values()):
        raise ValueError("a value that is not an object with strings")
    for text in (*value, *value.values()):
        os.fsencode(text)
    return value


_UNPACKERS: Mapping[Any, Callable[[Any], Any]] = {
    None: _null,
    int: _number,
    Long: partial(_number, most=_MOST[Long]),
    WaitStatus: _wait_status,
    Limit: partial(_number, most=_MOST[Long], least=-1),
    float: _float,
    bool: _bool,
    str: _text,
    FilePath: _path,
    Address: _address,
    Mapping[str, str]: _environment,
}
