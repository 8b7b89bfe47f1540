"""The instances that take part in a collective: communicators and scopes."""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from popdist.session import STATE

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT = "popdist.default"

# STATE: the members of the registered communicators.
COMMUNICATORS: dict[str, tuple[int, ...]] = {}
# They are among the members of one generation.
STATE.at_begin(COMMUNICATORS.clear)

# The instances that take part in collectives of the running call; None for the default
# communicator's.
_SCOPE: ContextVar[tuple[int, ...] | None] = ContextVar("popdist.scope", default=None)


def participants(communicator: str | None = None) -> tuple[int, ...]:
    """Return the instances of a communicator, which this process must be one of.

    Args:
        communicator: Its id; None for the default one, among all instances, or within
            execute_on_instances among the running ones.

    Raises:
        ValueError: There is no such communicator, or this instance is not in it, or
            it reaches beyond the instances that run.
    """
    scope = _SCOPE.get()
    if communicator is None or communicator == DEFAULT:
        members = scope or COMMUNICATORS.get(DEFAULT, STATE.job.members)
    elif communicator in COMMUNICATORS:
        members = COMMUNICATORS[communicator]
    else:
        raise ValueError(
            f"There is no communicator {communicator!r}. Call "
            "popdist.registerCommunicator(participants, id) on all instances first."
        )
    if STATE.job.place.rank not in members:
        raise ValueError(
            f"Instance {STATE.job.place.rank} is not in the communicator "
            f"{communicator or DEFAULT!r}, which is among the instances "
            f"{_list(members)}. Only those may call it."
        )
    if scope and not set(members) <= set(scope):
        raise ValueError(
            f"The communicator {communicator!r} is among the instances "
            f"{_list(members)}, but only {_list(scope)} run this part of the program. "
            "Call it outside execute_on_instances."
        )
    return members


def checked(instances: Iterable[int]) -> tuple[int, ...]:
    """Return a set of instances in order, if each of them is one of this job's.

    Raises:
        TypeError: One is not a whole number.
        ValueError: The set is empty, or has an instance that the job does not have.
    """
    numbers = sorted(set(instances))
    for instance in numbers:
        if not isinstance(instance, int) or isinstance(instance, bool):
            raise TypeError(
                f"{instance!r} is not an instance. Instances are whole numbers, from 0."
            )
    size = STATE.job.place.size
    if not numbers or numbers[0] < 0 or numbers[-1] >= size:
        raise ValueError(
            f"The instances are {_list(numbers) or 'none'}, but must be one or more of "
            f"0 to {size - 1}, as this job has {size}."
        )
    return tuple(numbers)


def execute_on_instances(
    instances: Iterable[int],
    func: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T | None:
    """Run a function on some instances only, and return its result there.

    All other instances return None at once, without waiting. The function's collectives
    are among the chosen instances only. This applies to calls of popdist.collectives
    without a communicator, and to groups from popdist.replica_group() and
    popdist.instance_group(). Existing groups do not change. Threads that the function
    starts are not restricted, unless they run in a copy of its context. Exceptions of
    the function are passed on.

    Args:
        instances: The indices of the instances, the same everywhere. Within another
            execute_on_instances, some of those that run it.
        func: The function; the following arguments are passed to it.

    Raises:
        ValueError: The job has no such instances, or they do not run this.
    """
    chosen = checked(instances)
    scope = _SCOPE.get()
    if scope and not set(chosen) <= set(scope):
        raise ValueError(
            f"The instances are {_list(chosen)}, but only {_list(scope)} run this part "
            "of the program. Choose among those."
        )
    if STATE.job.place.rank not in chosen:
        return None
    token = _SCOPE.set(chosen)
    try:
        return func(*args, **kwargs)
    finally:
        _SCOPE.reset(token)


def _list(instances: Iterable[int]) -> str:
    return ", ".join(map(str, instances))
