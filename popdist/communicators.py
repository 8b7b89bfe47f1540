"""The instances that take part in a collective: communicators and scopes."""

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from popdist.session import SCOPE, STATE

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT = "popdist.default"


def participants(communicator: str | None = None) -> tuple[int, ...]:
    """Return the instances of a communicator, which this process must be one of.

    Args:
        communicator: Its id; None for the default one, which within
            execute_on_instances is among the instances that run.

    Raises:
        ValueError: There is no such communicator, or this instance is not in it, or
            it reaches beyond the instances that run.
    """
    scope = SCOPE.get()
    if communicator is None or communicator == DEFAULT:
        found = scope or STATE.communicators.get(DEFAULT, STATE.job.members)
    elif communicator in STATE.communicators:
        found = STATE.communicators[communicator]
    else:
        raise ValueError(
            f"There is no communicator {communicator!r}. Call "
            "popdist.registerCommunicator(participants, id) on all instances first."
        )
    if STATE.job.place.rank not in found:
        raise ValueError(
            f"Instance {STATE.job.place.rank} is not in the communicator "
            f"{communicator or DEFAULT!r}, which is among the instances "
            f"{_list(found)}. Only those may call it."
        )
    if scope and not set(found) <= set(scope):
        raise ValueError(
            f"The communicator {communicator!r} is among the instances {_list(found)}, "
            f"but only {_list(scope)} run this part of the program. Call it outside "
            "execute_on_instances."
        )
    return found


def checked(instances: Iterable[int]) -> tuple[int, ...]:
    """Return a set of instances in order, if each of them is one of this job's.

    Raises:
        TypeError: One is not a whole number.
        ValueError: The set is empty, or has an instance that the job does not have.
    """
    found = sorted(set(instances))
    for instance in found:
        if not isinstance(instance, int) or isinstance(instance, bool):
            raise TypeError(
                f"{instance!r} is not an instance. Instances are whole numbers, from 0."
            )
    size = STATE.job.place.size
    if not found or found[0] < 0 or found[-1] >= size:
        raise ValueError(
            f"The instances are {_list(found) or 'none'}, but must be one or more of 0 "
            f"to {size - 1}, as this job has {size}."
        )
    return tuple(found)


def execute(
    instances: Iterable[int],
    func: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T | None:
    """Run a function on some instances: see popdist.execute_on_instances."""
    chosen = checked(instances)
    scope = SCOPE.get()
    if scope and not set(chosen) <= set(scope):
        raise ValueError(
            f"The instances are {_list(chosen)}, but only {_list(scope)} run this part "
            "of the program. Choose among those."
        )
    if STATE.job.place.rank not in chosen:
        return None
    token = SCOPE.set(chosen)
    try:
        return func(*args, **kwargs)
    finally:
        SCOPE.reset(token)


def _list(instances: Iterable[int]) -> str:
    return ", ".join(map(str, instances))
