"""PopDist's backend functions, and the instances that collectives are among.

The order is PopDist's, and strict: register one backend, initialise it once, use it,
finalise it once. popdist.init() does all of that. There is one backend, which meets
the other instances of this host in shared memory and never calls MPI_Init.

Collectives do not ask for it: in a program that has not initialised the backend, the
first one meets the other instances itself, and popdist.init() may still follow. After
finalizeBackend() none is possible.
"""

from collections.abc import Iterable

from popdist.communicators import DEFAULT, checked
from popdist.errors import BackendError, MismatchError
from popdist.session import STATE

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
    return STATE.backend == _INITIALIZED


def finalizeBackend() -> None:
    """Leave all groups for good. No collective is possible in this process after it.

    Every instance may call it when it has made its last collective. It waits for this
    instance's own calls that are under way, and not for the other instances.

    Raises:
        BackendError: The backend is not initialised, or has been finalised before.
    """
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
    # Not above: init() of a job on several hosts needs neither numpy nor the engine.
    import numpy as np

    from popdist.negotiation.named_calls import NamedCall, named_calls_among

    instances = checked(participants)
    key = DEFAULT if communicator_id is None else communicator_id
    parameters = np.frombuffer(repr((list(instances), key)).encode(), np.uint8)
    call = NamedCall(
        "popdist.registerCommunicator",
        "registerCommunicator",
        lambda group, name: group.all_gather(parameters, name=name),
    )
    gathered = named_calls_among(STATE.job.members).submit(call, wait=True).wait()
    for instance, other in enumerate(gathered):
        if other.tobytes() != gathered[0].tobytes():
            raise MismatchError(
                "registerCommunicator got different parameters: instance 0 gave "
                f"{gathered[0].tobytes().decode()}, but instance {instance} gave "
                f"{other.tobytes().decode()}. All instances must give the same."
            )
    STATE.communicators[key] = instances
