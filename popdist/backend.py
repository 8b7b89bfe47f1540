"""PopDist's backend functions, and the instances that collectives are among.

The order is PopDist's, and strict: register one backend, initialise it once, use it,
finalise it once. popdist.init() does all of that. There is one backend, which meets
the other instances of this host in shared memory and never calls MPI_Init.

Collectives do not ask for it: in a program that has not initialised the backend, the
first one meets the other instances itself, and popdist.init() may still follow. After
finalizeBackend() none is possible.
"""

import os
from collections.abc import Iterable
from threading import RLock

from popdist.communicators import COMMUNICATORS, DEFAULT, checked
from popdist.errors import BackendError, MismatchError
from popdist.session import STATE

_UNREGISTERED, _REGISTERED, _INITIALIZED, _FINALIZED = (
    "unregistered",
    "registered",
    "initialized",
    "finalized",
)


class _Backend:
    """STATE of the backend in this process."""

    def __init__(self) -> None:
        self.state = _UNREGISTERED
        # Held while the backend goes a step further, which may take several calls.
        self.step = RLock()

    def after_fork(self) -> None:
        # Another thread of the parent may have held it.
        self.step = RLock()


_BACKEND = _Backend()
os.register_at_fork(after_in_child=_BACKEND.after_fork)


def init() -> None:
    """Prepare collectives, and end them cleanly at exit.

    All instances of the job must call it; it blocks until they have. Further calls do
    nothing. Without poprun and mpirun it returns at once. On several hosts it does not
    connect to the other instances: the first collective does.

    Raises:
        ArenaError: The instances cannot share memory.
        BackendError: The backend has been finalised already.
    """
    # A second thread waits for the first one here, and finds all done.
    with _BACKEND.step:
        if isBackendInitialized():
            STATE.check()
            return
        if _BACKEND.state == _UNREGISTERED:
            registerDefaultBackend()
        initializeBackend()


def registerDefaultBackend() -> None:
    """Register the only backend that exists, in this instance.

    Raises:
        BackendError: It is registered already.
    """
    with _BACKEND.step:
        if _BACKEND.state != _UNREGISTERED:
            raise BackendError(
                f"A backend is {_BACKEND.state} already, and a process registers one "
                "only once. Leave this call out, or call popdist.init(), which can be "
                "repeated."
            )
        _BACKEND.state = _REGISTERED


def registerBackend(path: str) -> None:
    """Raise BackendError: there are no backends in shared libraries for popdist.

    Raises:
        BackendError: Always.
    """
    raise BackendError(
        f"{str(path)!r} cannot be registered, because popdist has no backends in "
        "separate files. Call popdist.registerDefaultBackend() instead."
    )


def initializeBackend() -> None:
    """Connect to the other instances of the job.

    All instances must call it; it blocks until they have. On several hosts it does not
    connect to them: the first collective does.

    Raises:
        ArenaError: The instances cannot share memory.
        BackendError: No backend is registered, or it has been initialised before.
    """
    with _BACKEND.step:
        if _BACKEND.state == _UNREGISTERED:
            raise BackendError(
                "No backend is registered, so there is none to initialise. Call "
                "popdist.registerDefaultBackend() first, or popdist.init() instead."
            )
        if _BACKEND.state != _REGISTERED:
            raise BackendError(
                f"The backend is {_BACKEND.state} already, and can be initialised only "
                "once. Call popdist.init(), which can be repeated until it is "
                "finalised."
            )
        STATE.prepare()
        _BACKEND.state = _INITIALIZED


def isBackendInitialized() -> bool:
    """Return whether the backend is ready: initialised, and not finalised."""
    return _BACKEND.state == _INITIALIZED


def finalizeBackend() -> None:
    """Leave all groups for good. This process can make no collectives afterwards.

    Each instance may call it after its last collective. It waits for this instance's
    own unfinished calls, but not for the other instances.

    Raises:
        BackendError: The backend is not initialised, or has been finalised before.
    """
    with _BACKEND.step:
        if _BACKEND.state != _INITIALIZED:
            raise BackendError(
                f"The backend is {_BACKEND.state}, but only an initialised one can be "
                "finalised, and only once. Leave this call out: it happens at exit."
            )
        STATE.close()
        _BACKEND.state = _FINALIZED


def defaultCommunicatorId() -> str:
    """Return the id of the communicator that collectives use if they name none."""
    return DEFAULT


def registerCommunicator(
    participants: Iterable[int], communicator_id: str | None = None
) -> None:
    """Give a set of instances an id, for collectives among them.

    All instances of the job must call it, including those outside the set, in the same
    order and with the same parameters; it blocks until they have. If an id is
    registered again, it stands for the new set. This works with the default
    communicator's id as well: collectives without an id are then among this set.

    Args:
        participants: The indices of the instances.
        communicator_id: Its id; None for the default communicator's id.

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
    COMMUNICATORS[key] = instances
