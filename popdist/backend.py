"""PopDist's backend functions, and the instances that collectives are among.

The order is PopDist's, and strict: register one backend, initialise it once, use it,
finalise it once. popdist.init() does all of that. There is one backend, which meets
the other instances of this host in shared memory and never calls MPI_Init.

Collectives do not ask for it: in a program that has not initialised the backend, the
first one meets the other instances itself, and popdist.init() may still follow. After
finalizeBackend() none is possible.
"""

# The rest of popdist is imported where it is needed: all programs import this module
# for the getters, few of them make collectives.

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from popdist.errors import BackendError, MismatchError

P = ParamSpec("P")
T = TypeVar("T")

_UNREGISTERED, _REGISTERED, _INITIALIZED, _FINALIZED = (
    "unregistered",
    "registered",
    "initialized",
    "finalized",
)


def init() -> None:
    """Make collectives ready, and have them ended in good order at exit.

    All instances of the job must call it; it blocks until they have. Every further
    call does nothing. Without poprun and mpirun it is ready at once. On several
    hosts it does not look for the other instances: their first collective does.

    Raises:
        ArenaError: The instances cannot share memory.
        BackendError: The backend has been finalised already.
    """
    from popdist.session import STATE

    # A second thread waits for the first one here, and finds all done.
    with STATE.step:
        if isBackendInitialized():
            STATE.check()
            return
        if STATE.backend == _UNREGISTERED:
            registerDefaultBackend()
        initializeBackend()


def registerDefaultBackend() -> None:
    """Register the only backend there is. Concerns this instance alone.

    Raises:
        BackendError: It is registered already.
    """
    from popdist.session import STATE

    with STATE.step:
        if STATE.backend != _UNREGISTERED:
            raise BackendError(
                f"A backend is {STATE.backend} already, and a process registers one "
                "only once. Leave this call out, or call popdist.init(), which can be "
                "repeated."
            )
        STATE.backend = _REGISTERED


def registerBackend(path: str) -> None:
    """Refuse a backend in a shared library: no such libraries exist for popdist.

    Raises:
        BackendError: Always.
    """
    raise BackendError(
        f"{str(path)!r} cannot be registered, because popdist has no backends in files "
        "of their own. Call popdist.registerDefaultBackend() instead."
    )


def initializeBackend() -> None:
    """Meet the other instances of the job.

    All instances must call it; it blocks until they have. On several hosts it does
    not look for them: their first collective does.

    Raises:
        ArenaError: The instances cannot share memory.
        BackendError: No backend is registered, or it has been initialised before.
    """
    from popdist.session import STATE

    with STATE.step:
        if STATE.backend == _UNREGISTERED:
            raise BackendError(
                "No backend is registered, so there is none to initialise. Call "
                "popdist.registerDefaultBackend() first, or popdist.init() instead."
            )
        if STATE.backend != _REGISTERED:
            raise BackendError(
                f"The backend is {STATE.backend} already, and can be initialised only "
                "once. Call popdist.init(), which can be repeated until it is "
                "finalised."
            )
        STATE.prepare()
        STATE.backend = _INITIALIZED


def isBackendInitialized() -> bool:
    """Return whether the backend is ready: initialised, and not finalised."""
    from popdist.session import STATE

    return STATE.backend == _INITIALIZED


def finalizeBackend() -> None:
    """Leave all groups for good. No collective is possible in this process after it.

    Every instance may call it when it has made its last collective. It waits for this
    instance's own calls that are under way, and not for the other instances.

    Raises:
        BackendError: The backend is not initialised, or has been finalised before.
    """
    from popdist.session import STATE

    with STATE.step:
        if STATE.backend != _INITIALIZED:
            raise BackendError(
                f"The backend is {STATE.backend}, but only an initialised one can be "
                "finalised, and only once. Leave this call out: it happens at exit."
            )
        STATE.close()
        STATE.backend = _FINALIZED


def defaultCommunicatorId() -> str:
    """Return the id of the communicator that collectives use if they name none."""
    from popdist.communicators import DEFAULT

    return DEFAULT


def registerCommunicator(
    participants: Iterable[int], communicator_id: str | None = None
) -> None:
    """Give a set of instances an id, by which collectives can be among them.

    All instances of the job must call it, in the same order and with the same
    parameters, those outside the set too; it blocks until they have. An id that is
    registered again stands for the new set. The default communicator's id is one
    that can be given: from then on collectives without an id are among this set.

    Args:
        participants: The indices of the instances.
        communicator_id: Its id; None for that of the default communicator.

    Raises:
        MismatchError: The instances called it with different parameters.
        ValueError: The job has no such instances.
    """
    import numpy as np

    from popdist.communicators import DEFAULT, checked
    from popdist.negotiation.named_calls import NamedCall, named_calls_among
    from popdist.session import STATE

    chosen = checked(participants)
    key = DEFAULT if communicator_id is None else communicator_id
    mine = np.frombuffer(repr((list(chosen), key)).encode(), np.uint8)
    call = NamedCall(
        "popdist.registerCommunicator",
        "registerCommunicator",
        mine,
        lambda group, name: group.all_gather(mine, name=name),
        lambda _, rows: list(rows),
    )
    given = named_calls_among(STATE.job.members).submit(call, wait=True).wait()
    for instance, other in enumerate(given):
        if other.tobytes() != given[0].tobytes():
            raise MismatchError(
                "registerCommunicator got different parameters: instance 0 gave "
                f"{given[0].tobytes().decode()}, but instance {instance} gave "
                f"{other.tobytes().decode()}. All instances must give the same."
            )
    STATE.communicators[key] = chosen


def execute_on_instances(
    instances: Iterable[int],
    func: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T | None:
    """Run a function on some instances only, and return its result there.

    All others return None at once, without waiting. Collectives that the function
    makes are among those instances only: those of popdist.collectives without a
    communicator of their own, and the groups that it gets from
    popdist.replica_group(). Groups that were made before remain what they are, and
    threads that the function starts are outside, unless they run in a copy of its
    context. What the function raises, this call raises.

    Args:
        instances: The indices of the instances, the same everywhere. Within another
            execute_on_instances, some of those that run it.
        func: What to call, with the arguments that follow.

    Raises:
        ValueError: The job has no such instances, or they do not run this.
    """
    from popdist.communicators import execute

    return execute(instances, func, *args, **kwargs)
