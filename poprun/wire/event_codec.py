"""Events of a job as JSON: what an agent reports, and what poprun reads.

poprun does not trust what comes from another host: an event that is no host's to
report, or has a field of another type, is none.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from math import isfinite
from typing import Any

from poprun.wire import events, messages
from poprun.wire.events import Event

# What happens on a host. All others are poprun's own.
OF_HOSTS = (
    events.AcceptFailed,
    events.AloneInMpi,
    events.Clean,
    events.Connected,
    events.DaemonKilled,
    events.DebuggerReady,
    events.DevicesLost,
    events.Exited,
    events.FailedInFinalize,
    events.NotUndone,
    events.Orphaned,
    events.PromptOver,
    events.PromptShown,
    events.Refused,
    events.Rejected,
    events.Remains,
    events.ShimLeft,
    events.ShimLost,
    events.SlurmEndsJob,
    events.StacksAvailable,
    events.Started,
    events.TorchGroupsMade,
    events.UsageMeasured,
    events.WaitsInFinalize,
)
_CLASSES: Mapping[str, type[Any]] = {c.__name__: c for c in OF_HOSTS}
# Fields that need not fit in a C int.
_LONG = (
    *("at_ns", "memory_kib", "peak_kib"),
    *("call_bytes", "num_calls", "number", "total_bytes"),
)
_LONGEST_TEXT = 1 << 14
_LONGEST_TUPLE = 1 << 13


def pack(event: Event) -> list[Any]:
    """Return an event as a JSON value: the name of its class, and its fields."""
    values = (getattr(event, field.name) for field in fields(event))
    return [type(event).__name__, *values]


def unpack(value: Any) -> Event:
    """Return the event that a JSON value stands for.

    Raises:
        ValueError: It stands for none that a host may report.
    """
    try:
        class_name, *contents = value
        event_class = _CLASSES[class_name]
        types = event_class.__annotations__
        pairs = zip(types.items(), contents, strict=True)
        event: Event = event_class(
            **{name: _read(name, kind, field) for (name, kind), field in pairs}
        )
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{str(value)[:200]} is not an event of a host") from error
    return event


def _read(name: str, kind: Any, field: Any) -> Any:
    """Return a field of an event.

    Raises:
        ValueError: It has another type than it must have, or is out of range.
    """
    read: Callable[[Any], Any] = _READERS.get(kind, _read_tuple)
    if name == "status":
        read = _read_status
    elif name in _LONG:
        read = _read_long
    return read(field)


def _read_int(field: Any) -> int:
    return _bounded(field, 1 << 31)


def _read_long(field: Any) -> int:
    return _bounded(field, 1 << 63)


def _bounded(field: Any, limit: int) -> int:
    if type(field) is not int or not 0 <= field < limit:
        raise ValueError(field)
    return field


def _read_status(field: Any) -> int:
    status = _bounded(field, 1 << 16)
    if not (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
        raise ValueError(field)
    return status


def _read_float(field: Any) -> float:
    if type(field) not in (int, float) or not isfinite(field):
        raise ValueError(field)
    return float(field)


def _read_bool(field: Any) -> bool:
    if type(field) is not bool:
        raise ValueError(field)
    return field


def _read_text(field: Any) -> str:
    if type(field) is not str or len(field) > _LONGEST_TEXT:
        raise ValueError("text that is not a string, or too long")
    # Of an undecodable file name there are surrogates, which cannot be written.
    return messages.printable(field.encode(errors="surrogatepass"))


def _read_tuple(field: Any) -> tuple[int, ...]:
    if type(field) is not list or len(field) > _LONGEST_TUPLE:
        raise ValueError("a value that is not a list, or too long")
    return tuple(map(_read_int, field))


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_text,
}
