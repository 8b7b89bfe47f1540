"""Links by MPI, which the program or this module initialises."""

import ctypes
from collections.abc import Callable, Set
from contextlib import suppress
from importlib import import_module
from threading import Event, Lock
from time import monotonic, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from popdist.engine import _core
from popdist.engine.hosts.links import LinkError
from popdist.engine.hosts.mpi.arrivals import Arrivals, listening_ports
from popdist.errors import ArenaError

# The tag of short messages.
_TAG = 1
# The most listening ports of MPI that each process tells the others.
_MOST_PORTS = 16
# For how long after processes have hung up nothing is sent: by then it is known which.
# The shorter time is for as many hangups as there are deaths known.
_NEWS_SECONDS, _MORE_NEWS_SECONDS = 3.0, 0.5


class MpiLinks:
    """Links by a duplicate of MPI_COMM_WORLD."""

    def __init__(self, mpi: Any, library: Any, ports: Set[int]) -> None:
        """Connect all processes of the job.

        Args:
            mpi: mpi4py's module, imported only where it is needed.
            library: The library if popdist has initialised it, else None.
            ports: MPI's listening ports in this process, if this MPI crashes when
                something is sent to a dead process.
        """
        self._mpi, self._library = mpi, library
        self._comm = _wait_for(*mpi.COMM_WORLD.Idup())
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._arrivals = Arrivals(self._ports_of_all(ports))
        self._lock = Lock()
        # Requests of short messages, with their data.
        self._sending: list[tuple[Any, object]] = []
        # How many deaths on other hosts have hangups that are not reported any more.
        self._forgotten_deaths = 0
        self.failed: dict[int, int] = {}
        self.most_tag = int(self._comm.Get_attr(mpi.TAG_UB))
        functions = ctypes.CDLL(mpi.__file__)

        def address_of(name: str) -> int:
            return ctypes.cast(functions[name], ctypes.c_void_p).value or 0

        self.table = _core.mpi_links(
            *(address_of("MPI_Isend"), address_of("MPI_Irecv"), address_of("MPI_Test")),
            *(mpi._handleof(self._comm), mpi._handleof(mpi.BYTE)),
            *(self._arrivals.fileno(), self._arrivals.hangups_fileno()),
        )

    def gather(self, data: bytes) -> list[bytes]:
        sent = np.frombuffer(data, np.uint8)
        received = np.empty((self._comm.size, len(sent)), np.uint8)
        _wait_for(None, self._comm.Iallgather(sent, received))
        return [bytes(row) for row in received]

    def post(self, instance: int, data: bytes) -> None:
        memory = np.frombuffer(data, np.uint8)
        try:
            request = self._comm.Isend(memory, instance, _TAG)
        except self._mpi.Exception as error:
            raise LinkError(error.Get_error_code()) from error
        with self._lock:
            self._sending.append((request, memory))

    def take(self) -> tuple[int, bytes] | None:
        self._arrivals.refresh()
        try:
            with self._lock:
                self._sending = [
                    one for one in self._sending if not self._is_sent(one[0])
                ]
            return self._probe()
        except self._mpi.Exception:
            self._note_failed()
            return None

    def is_sending(self) -> bool:
        return bool(self._sending)

    def prepare(
        self,
        instance: int,
        count_deaths: Callable[[], int],
        is_over: Callable[[], bool],
    ) -> bool:
        """Once a process has hung up, wait until it is known which one has died.

        MPICH detects the hangup, and crashes in the next call that sends something to
        the dead process.
        """
        while (hangups := self._arrivals.hangups())[0]:
            deaths = count_deaths()
            if is_over():
                return False
            is_known = hangups[0] <= deaths - self._forgotten_deaths
            limit = _MORE_NEWS_SECONDS if is_known else _NEWS_SECONDS
            if monotonic() - hangups[1] > limit:
                self._forgotten_deaths = deaths
                self._arrivals.forget_hangups()
            sleep(0.01)
        return True

    def explain(self, error: int) -> str:
        text: str = self._mpi.Get_error_string(error)
        return text

    def begin_end(self, sent: NDArray[np.int64]) -> Callable[[], int | None]:
        count = np.empty(1, np.int64)
        request = self._comm.Ireduce_scatter_block(sent, count)
        return lambda: int(count[0]) if request.Test() else None

    def close(self) -> None:
        """Finalise MPI, unless the program has initialised it."""
        if self._library:
            self._library.MPI_Finalize()

    def _ports_of_all(self, ports: Set[int]) -> set[int]:
        own = np.zeros(_MOST_PORTS, np.uint16)
        few = sorted(ports)[:_MOST_PORTS]
        own[: len(few)] = few
        gathered = b"".join(self.gather(own.tobytes()))
        return set(np.frombuffer(gathered, np.uint16).tolist()) - {0}

    def _is_sent(self, request: Any) -> bool:
        """Return whether a message is on its way; also if nothing can send it."""
        try:
            sent: bool = request.Test()
        except self._mpi.Exception:
            return True
        return sent

    def _note_failed(self) -> None:
        """Ask MPI for the processes that have died, if it can tell.

        After that, MPI receives messages from all others again.
        """
        with suppress(self._mpi.Exception, AttributeError, NotImplementedError):
            failed = self._comm.Get_failed()
            every = self._comm.Get_group()
            self._comm.Ack_failed(failed.Get_size())
            ranks = range(failed.Get_size())
            dead = failed.Translate_ranks(list(ranks), every)
            self.failed |= dict.fromkeys(dead, 0)

    def _probe(self) -> tuple[int, bytes] | None:
        status = self._mpi.Status()
        message = self._comm.Improbe(self._mpi.ANY_SOURCE, _TAG, status)
        if message is None:
            return None
        data = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        message.Recv([data, self._mpi.BYTE])
        return status.Get_source(), data.tobytes()


def connect(rank: int, size: int, on_finalise: Callable[[], None]) -> MpiLinks:
    """Return links by MPI, once all processes of the job have started it.

    Args:
        rank: The number of this instance, which must be its rank for MPI.
        on_finalise: Called when the program finalises MPI.

    Raises:
        ArenaError: It cannot be started, or was started otherwise by the program.
    """
    mpi, library, ports = _initialised(rank)
    # MPI_Finalize calls this before anything else.
    key = mpi.Comm.Create_keyval(delete_fn=lambda *_: on_finalise())
    mpi.COMM_SELF.Set_attr(key, 1)
    world = mpi.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        raise ArenaError(
            f"This process is instance {rank} of {size}, but rank {world.rank} of "
            f"{world.size} for MPI, by which popdist reaches other hosts. Start the "
            "program with poprun, or with the mpirun of the MPI that mpi4py uses "
            "(MPI4PY_LIBMPI names its libmpi), or set "
            "POPDIST_LINKS=tcp://HOST:PORT/SECRET to use TCP."
        )
    return MpiLinks(mpi, library, ports)


def end_before_destructors() -> None:
    """Let exit() end this process before libraries tear down what they have.

    A thread that is in MPI would crash: it may wait for a process that has died.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # musl has none
        # Called in reverse order. _exit gets the status that the process ends with.
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


def _initialised(rank: int) -> tuple[Any, Any, set[int]]:
    """Return mpi4py's MPI, initialised, and the library if this function has done so.

    Also return MPI's listening ports, if this MPI crashes when something is sent to a
    dead process.

    Raises:
        ArenaError: There is none, or the program has initialised it with fewer threads.
    """
    mpi = _import_mpi(rank)
    library, ports = None, set[int]()
    if mpi.Is_finalized():
        raise ArenaError(
            "The program has finalised MPI, by which popdist reaches other hosts. "
            "Make popdist's collectives before that."
        )
    if not mpi.Is_initialized():
        # mpi4py's own function keeps other threads from running while MPI waits for
        # the other processes; a call by ctypes does not.
        library = ctypes.CDLL(mpi.__file__)
        provided = ctypes.c_int()
        before = listening_ports()
        library.MPI_Init_thread(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(provided))
        if mpi.get_vendor()[0] == "MPICH":
            ports = listening_ports() - before
        # mpi4py's own function does the same.
        for comm in (mpi.COMM_WORLD, mpi.COMM_SELF):
            comm.Set_errhandler(mpi.ERRORS_RETURN)
    if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
        raise ArenaError(
            "MPI was initialised without MPI_THREAD_MULTIPLE, but popdist, which "
            "reaches other hosts by it, calls it from several threads. Leave "
            'mpi4py.rc.thread_level at "multiple", or call MPI_Init_thread with that, '
            "or call popdist.init() first; or use an MPI that was built with it."
        )
    return mpi, library, ports


def _import_mpi(rank: int) -> Any:
    """Import mpi4py without initialising MPI, and without traces in its settings."""
    try:
        settings = import_module("mpi4py").rc
        before = settings.initialize, settings.finalize
        # It must not finalise MPI either: it would wait for processes that have died.
        settings.initialize = settings.finalize = False
        try:
            return import_module("mpi4py.MPI")
        finally:
            settings.initialize, settings.finalize = before
    except (ImportError, RuntimeError) as error:
        raise ArenaError(
            f"Instance {rank} reaches other hosts by MPI, but mpi4py cannot "
            f"be imported: {error}. Install it on all hosts: pip install mpi4py. Or "
            "set POPDIST_LINKS=tcp://HOST:PORT/SECRET to use TCP."
        ) from error


def _wait_for(result: Any, request: Any) -> Any:
    """Return the result of a call of MPI that all processes make, once it is there."""
    pause = 0.0
    while not request.Test():
        Event().wait(pause)
        pause = min(pause + 0.0002, 0.02)
    return result
