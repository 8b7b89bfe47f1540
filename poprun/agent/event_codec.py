"""Events of a job as JSON: what an agent reports, and what poprun reads."""

from poprun.annotations import Any
from poprun.job import events
from poprun.job.events import Event


def pack(event: Event) -> list[Any]:
    """Return an event as a JSON value: the name of its class, and its fields."""
    names: tuple[str, ...] = type(event).__match_args__
    return [type(event).__name__, *(getattr(event, name) for name in names)]


def unpack(value: Any) -> Event:
    """Return the event that a JSON value stands for.

    Raises:
        ValueError: It stands for none.
    """
    try:
        name, *fields = value
        event_class = getattr(events, name)
        if not issubclass(event_class, Event):
            raise TypeError(name)
        event: Event = event_class(*map(_as_tuple, fields))
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{value!r} is no event") from error
    return event


def _as_tuple(field: Any) -> Any:
    return tuple(field) if isinstance(field, list) else field
