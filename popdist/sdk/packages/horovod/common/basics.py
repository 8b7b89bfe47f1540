"""Start and end of Horovod, ranks and timelines, for any framework."""

import atexit
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, Literal

import numpy as np

from popdist.engine.group import Group
from popdist.generations import GENERATIONS
from popdist.job import Job
from popdist.negotiation.calls import CarryOut
from popdist.negotiation.negotiator import Negotiator
from popdist.session import STATE

from .exceptions import NotInitializedError, internal_errors
from .process_sets import ProcessSet, checked_ranks
from .registered_sets import RegisteredSets
from .timeline import Timeline

_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"
_TIMELINE = "HOROVOD_TIMELINE"
_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES"
# In milliseconds.
_CYCLE_TIME = "HOROVOD_CYCLE_TIME"


class HorovodBasics:
    """The ranks of a job, as one of them sees them, for one framework's tensors.

    Its methods are the functions of the framework's module: hvd.init() and the others.
    """

    def __init__(self, make_carrier: Callable[[Group], CarryOut]) -> None:
        """Begin without ranks.

        Args:
            make_carrier: Returns what carries out calls with the framework's tensors
                among the members of one group.
        """
        self._make_carrier = make_carrier
        self._lock = RLock()
        # None before init().
        self._sets: RegisteredSets | None = None
        self._timeline: Timeline | None = None
        # Whether all ranks with the state of the job have ended: see elastic.run().
        self.has_lost_state = False

    def init(
        self,
        # Any: a communicator of mpi4py, which may not be installed.
        comm: Any = None,
        process_sets: Sequence[ProcessSet | Iterable[int]]
        | Literal["dynamic"]
        | None = None,
    ) -> None:
        """Connect to the other ranks. A second call does nothing.

        All instances of the job must call it; it blocks until they have. Without poprun
        and mpirun this process is the only rank.

        Args:
            comm: The instances that are ranks, as a list of their numbers; or a
                communicator of mpi4py that has all of them. None for all. With lists,
                instances of a job on one host may leave the call out.
            process_sets: Process sets to register, the same on all ranks; of equal
                ones the first counts. Or "dynamic" for a program that adds and removes
                them later.

        Raises:
            ValueError: comm or process_sets are not valid.
            HorovodInternalError: The ranks cannot reach each other.
        """
        dynamic = os.environ.get(_DYNAMIC, "0") not in ("", "0")
        if isinstance(process_sets, str):
            if process_sets.lower() != "dynamic":
                raise ValueError(
                    f"process_sets is {process_sets!r}, but must be a list of process "
                    "sets, or 'dynamic'."
                )
            process_sets, dynamic = (), True
        with self._lock:
            if self.is_initialized():
                return
            STATE.check()
            instances = self._in_order(_instances_of(comm, STATE.job))
            cycle = _cycle_seconds(os.environ)
            self._sets = RegisteredSets(instances, self._make_carrier, dynamic, cycle)
            try:
                self._sets.begin(process_sets or ())
                self._start_timeline_of_environment()
            except BaseException:
                self.shutdown()
                raise
            atexit.register(self.shutdown)

    def shutdown(self) -> None:
        """End Horovod in this process. init() may follow, if all ranks call it.

        Calls that are under way fail with HorovodInternalError on all ranks.
        """
        with self._lock:
            if self._sets is None:
                return
            atexit.unregister(self.shutdown)
            self.stop_timeline()
            self._sets.shut_down()
            self._sets = None

    def is_initialized(self) -> bool:
        """Return whether init() has been called, and not shutdown() since."""
        return self._sets is not None

    def rank(self) -> int:
        """Return the number of this process among all ranks."""
        return self._initialized().rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._initialized().size

    def local_rank(self) -> int:
        """Return the number of this process among those of its host."""
        return self._initialized().local_ranks().index(self.rank())

    def local_size(self) -> int:
        """Return the number of ranks on this host."""
        return len(self._initialized().local_ranks())

    def cross_rank(self) -> int:
        """Return this host's number among those with a rank of this local number."""
        return self._initialized().cross_ranks(self.local_rank()).index(self.rank())

    def cross_size(self) -> int:
        """Return the number of hosts that have a rank of this local number."""
        return len(self._initialized().cross_ranks(self.local_rank()))

    def is_homogeneous(self) -> bool:
        """Return whether all hosts have the same number of ranks."""
        return len(set(map(len, self._initialized().ranks_of_hosts()))) == 1

    def instances(self) -> tuple[int, ...]:
        """Return the instances that are ranks, in their own order.

        Before init() these are all of the job.
        """
        sets = self._sets
        return tuple(sorted(sets.instances)) if sets else STATE.job.members

    def mpi_threads_supported(self) -> bool:
        """Return whether other uses of MPI may be mixed with Horovod's calls.

        They may, as no call here uses MPI.
        """
        self._initialized()
        return True

    def add_process_set(self, process_set: ProcessSet | Iterable[int]) -> ProcessSet:
        """Register a process set, and return it.

        All ranks must call it, in the same order; it blocks until they have.

        Raises:
            ValueError: There is a set of these ranks; hvd.init() was not called with
                process_sets="dynamic"; or there are no such ranks.
            HorovodInternalError: The ranks have given different sets.
        """
        registered = self._initialized()
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        if not registered.dynamic:
            raise ValueError(
                "Process sets can be added after hvd.init() only in a program that "
                "called hvd.init(process_sets='dynamic'), or that runs with "
                f"{_DYNAMIC}=1. Do so, or give them to hvd.init()."
            )
        registered.add(process_set)
        return process_set

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Forget a process set. All ranks must call it, in the same order.

        Returns whether it could be removed: the global process set cannot.
        """
        return self._initialized().remove(process_set)

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Write a timeline of calls to a file, from now on. Rank 0 writes it.

        Args:
            file_path: A file, which is replaced. chrome://tracing and Perfetto show it.
            mark_cycles: Mark the rounds in which ranks announce their calls.
        """
        registered = self._initialized()
        self.stop_timeline()
        if registered.rank == 0:
            self._timeline = Timeline(file_path, mark_cycles)
            registered.observe(self._timeline)

    def stop_timeline(self) -> None:
        """End the timeline, and complete its file."""
        if self._timeline is not None and self._sets is not None:
            self._sets.observe(None)
            self._timeline.close()
            self._timeline = None

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Return the ranks of all registered process sets, by their ids.

        Programs call it as hvd.mpi_ops._basics._get_process_set_ids_and_ranks().
        """
        return self._initialized().ranks_by_id()

    def check_registered(self, process_set: ProcessSet) -> None:
        """Raise ValueError after init() unless a process set is registered."""
        if self._sets is not None:
            self._sets.id_of(process_set)

    def negotiator(self, process_set: ProcessSet) -> Negotiator:
        """Return what makes the calls of a process set.

        Raises:
            ValueError: The set is not registered, or this rank is not in it.
            HorovodInternalError: The ranks cannot reach each other.
        """
        registered = self._initialized()
        with internal_errors():
            STATE.check()
        return registered.negotiator(process_set)

    def _in_order(self, instances: tuple[int, ...]) -> tuple[int, ...]:
        """Return the instances in the order of the ranks: in an elastic job by age.

        Programs for Horovod broadcast from rank 0, so that must not be a new instance.
        One may have joined, and not have received the state when the others ended.
        """
        if GENERATIONS.current == 0:
            return instances
        with internal_errors(), STATE.group("horovod ages", instances) as group:
            own = np.array([GENERATIONS.lacks_state, GENERATIONS.joined])
            ages = [tuple(row.tolist()) for row in group.all_gather(own)]
        youth = dict(zip(instances, ages, strict=True))
        self.has_lost_state = all(lacks_state for lacks_state, _ in ages)
        return tuple(sorted(instances, key=lambda instance: youth[instance]))

    def _initialized(self) -> RegisteredSets:
        """Return the process sets.

        Raises:
            NotInitializedError: init() has not been called.
        """
        if self._sets is None:
            raise NotInitializedError
        return self._sets

    def _start_timeline_of_environment(self) -> None:
        path = os.environ.get(_TIMELINE, "")
        if path and path != "DYNAMIC":
            self.start_timeline(path, os.environ.get(_MARK_CYCLES, "") == "1")


# Any: as in init().
def _instances_of(comm: Any, job: Job) -> tuple[int, ...]:
    """Return the instances that are ranks, in the order of the ranks.

    Raises:
        ValueError: They are none of the job's, or this one is not among them.
    """
    place = job.place
    if hasattr(comm, "Get_size"):
        if (comm.Get_rank(), comm.Get_size()) != (place.rank, place.size):
            raise ValueError(
                f"The communicator has {comm.Get_size()} ranks, of which this is "
                f"{comm.Get_rank()}, but the job has {place.size} instances, of which "
                f"this is {place.rank}. Give the list of the instances instead."
            )
        return job.members
    numbers = [] if comm is None else list(comm)
    if not numbers:
        return job.members
    instances = tuple(checked_ranks(numbers))
    if not set(instances) <= set(job.members) or place.rank not in instances:
        raise ValueError(
            f"hvd.init() got the ranks {list(instances)}, but the job has "
            f"{place.size} instances, of which this is {place.rank}. Give ranks of the "
            "job, this one included, or none for all of them."
        )
    return instances


def _cycle_seconds(environ: Mapping[str, str]) -> float:
    """Return how long to collect requests that nothing waits for.

    Raises:
        ValueError: The variable is not valid.
    """
    text = environ.get(_CYCLE_TIME) or "1"
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    # NaN is not in it, either.
    if not 0 <= milliseconds <= 1000:
        raise ValueError(
            f"{_CYCLE_TIME} is {text!r}, but must be a number of milliseconds from 0 "
            "to 1000. Correct it, or unset it."
        )
    return milliseconds / 1000
