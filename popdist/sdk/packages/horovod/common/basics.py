"""Start and end of Horovod, ranks, process sets and timelines, for any framework."""

import atexit
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, Literal

import numpy as np

from popdist.engine.group import Group
from popdist.generations import GENERATIONS
from popdist.hosts import host_numbers, start_links
from popdist.job import Job
from popdist.negotiation.agreement import Agreement
from popdist.negotiation.call_requests import Kind, Request
from popdist.negotiation.calls import Call, CarryOut
from popdist.negotiation.negotiator import Negotiator
from popdist.session import STATE

from .exceptions import NotInitializedError, internal_errors
from .process_sets import ProcessSet, checked_ranks, global_process_set
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
        # The instance of each rank; none before init().
        self._instances: tuple[int, ...] = ()
        self._rank = 0
        # Whether process sets may be added after init(), and after all later ones: an
        # elastic job calls it itself after a change of ranks.
        self._dynamic = False
        # How many seconds to collect requests that nothing waits for.
        self._cycle = 0.0
        # The registered process sets, and what makes the calls of each, by their ids.
        self._sets: dict[int, ProcessSet] = {}
        self._negotiators: dict[int, Negotiator] = {}
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
            cycle = _cycle_seconds(os.environ)
            instances = self._in_order(_instances_of(comm, STATE.job))
            self._rank = instances.index(STATE.job.place.rank)
            self._instances, self._cycle = instances, cycle
            self._dynamic |= dynamic
            try:
                self._register_first(process_sets or ())
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
            if not self.is_initialized():
                return
            atexit.unregister(self.shutdown)
            self.stop_timeline()
            for negotiator in reversed(self._negotiators.values()):
                negotiator.shut_down(f"Rank {self._rank} has shut down Horovod.")
            for process_set in self._sets.values():
                process_set.invalidate()
            self._negotiators, self._sets, self._instances = {}, {}, ()
            global_process_set.ranks = None

    def is_initialized(self) -> bool:
        """Return whether init() has been called, and not shutdown() since."""
        return bool(self._instances)

    def rank(self) -> int:
        """Return the number of this process among all ranks."""
        self._check_initialized()
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        self._check_initialized()
        return len(self._instances)

    def local_rank(self) -> int:
        """Return the number of this process among those of its host."""
        return self._local_ranks().index(self._rank)

    def local_size(self) -> int:
        """Return the number of ranks on this host."""
        return len(self._local_ranks())

    def cross_rank(self) -> int:
        """Return this host's number among those with a rank of this local number."""
        return self._cross_ranks().index(self._rank)

    def cross_size(self) -> int:
        """Return the number of hosts that have a rank of this local number."""
        return len(self._cross_ranks())

    def is_homogeneous(self) -> bool:
        """Return whether all hosts have the same number of ranks."""
        return len(set(map(len, self._ranks_of_hosts()))) == 1

    def instances(self) -> tuple[int, ...]:
        """Return the instances that are ranks, in their own order.

        Before init() these are all of the job.
        """
        return tuple(sorted(self._instances)) or STATE.job.members

    def mpi_threads_supported(self) -> bool:
        """Return whether other uses of MPI may be mixed with Horovod's calls.

        They may, as no call here uses MPI.
        """
        self._check_initialized()
        return True

    def add_process_set(self, process_set: ProcessSet | Iterable[int]) -> ProcessSet:
        """Register a process set, and return it.

        All ranks must call it, in the same order; it blocks until they have.

        Raises:
            ValueError: There is a set of these ranks; hvd.init() was not called with
                process_sets="dynamic"; or there are no such ranks.
            HorovodInternalError: The ranks have given different sets.
        """
        self._check_initialized()
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        if not self._dynamic:
            raise ValueError(
                "Process sets can be added after hvd.init() only in a program that "
                "called hvd.init(process_sets='dynamic'), or that runs with "
                f"{_DYNAMIC}=1. Do so, or give them to hvd.init()."
            )
        self._add(process_set)
        return process_set

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Forget a process set. All ranks must call it, in the same order.

        Returns whether it could be removed: the global process set cannot.
        """
        self._check_initialized()
        set_id = process_set.process_set_id
        if not set_id or set_id not in self._sets:
            return False
        self._agree_on_ranks(Kind.REMOVE_PROCESS_SET, process_set.ranks or [])
        negotiator = self._negotiators.pop(set_id, None)
        if negotiator is not None:
            negotiator.shut_down(f"Rank {self._rank} has removed {process_set}.")
        self._sets.pop(set_id).invalidate()
        process_set.invalidate()
        return True

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Write a timeline of calls to a file, from now on. Rank 0 writes it.

        Args:
            file_path: A file, which is replaced. chrome://tracing and Perfetto show it.
            mark_cycles: Mark the rounds in which ranks announce their calls.
        """
        self._check_initialized()
        self.stop_timeline()
        if self._rank == 0:
            self._observe(Timeline(file_path, mark_cycles))

    def stop_timeline(self) -> None:
        """End the timeline, and complete its file."""
        if (timeline := self._timeline) is not None:
            self._observe(None)
            timeline.close()

    def _observe(self, timeline: Timeline | None) -> None:
        """Write the calls of all sets to a timeline from now on, or to none."""
        self._timeline = timeline
        for negotiator in self._negotiators.values():
            negotiator.observe(timeline)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Return the ranks of all registered process sets, by their ids.

        Programs call it as hvd.mpi_ops._basics._get_process_set_ids_and_ranks().
        """
        self._check_initialized()
        return {set_id: list(each.ranks or ()) for set_id, each in self._sets.items()}

    def check_registered(self, process_set: ProcessSet) -> None:
        """Raise ValueError after init() unless a process set is registered."""
        if self.is_initialized():
            self._id_of(process_set)

    def _id_of(self, process_set: ProcessSet) -> int:
        set_id = process_set.process_set_id
        if set_id is None or set_id not in self._sets:
            raise ValueError(
                f"{process_set} is not registered. Give it to hvd.init(), or call "
                "hvd.add_process_set()."
            )
        return set_id

    def negotiator(self, process_set: ProcessSet) -> Negotiator:
        """Return what makes the calls of a process set.

        Raises:
            ValueError: The set is not registered, or this rank is not in it.
            HorovodInternalError: The ranks cannot reach each other.
        """
        self._check_initialized()
        with internal_errors():
            STATE.check()
        set_id = process_set.process_set_id
        existing = None if set_id is None else self._negotiators.get(set_id)
        if existing is not None:
            return existing
        # Not while another thread shuts Horovod down.
        with self._lock:
            self._check_initialized()
            set_id = self._id_of(process_set)
            if not process_set.included():
                raise ValueError(
                    f"Rank {self._rank} is not in {process_set}, so it makes no calls "
                    "in it. Make them on its own ranks only."
                )
            return self._negotiators.get(set_id) or self._add_negotiator(set_id)

    def _check_initialized(self) -> None:
        """Raise NotInitializedError before init()."""
        if not self._instances:
            raise NotInitializedError

    def _register_first(
        self, process_sets: Sequence[ProcessSet | Iterable[int]]
    ) -> None:
        """Register the set of all ranks, and others; of equal ones the first counts."""
        if self.size() < STATE.job.place.size:
            with internal_errors():
                start_links(self._instances)
        self._register(global_process_set, range(self.size()))
        self.negotiator(global_process_set)
        for ranks in process_sets:
            process_set = ranks if isinstance(ranks, ProcessSet) else ProcessSet(ranks)
            if self._id_of_ranks(process_set.ranks or []) is None:
                self._add(process_set)

    def _add(self, process_set: ProcessSet) -> None:
        """Register a process set on all ranks, which must call this.

        Raises:
            ValueError: There is a set of these ranks, or there are no such ranks.
            HorovodInternalError: The ranks have given different sets.
        """
        ranks = process_set.ranks or []
        if ranks and ranks[-1] >= self.size():
            raise ValueError(
                f"A process set of the ranks {ranks} is given, but there are only "
                f"{self.size()} ranks, from 0."
            )
        existing = self._id_of_ranks(ranks)
        if existing is not None:
            raise ValueError(
                f"Process set {existing} has the ranks {ranks} already. Use that one."
            )
        self._agree_on_ranks(Kind.ADD_PROCESS_SET, ranks)
        self._register(process_set, ranks)
        if process_set.included() and self.size() > 1:
            self.negotiator(process_set)

    def _register(self, process_set: ProcessSet, ranks: Sequence[int]) -> None:
        set_id = next(n for n in range(len(self._sets) + 1) if n not in self._sets)
        process_set.register(set_id, ranks, self._rank)
        self._sets[set_id] = process_set

    def _id_of_ranks(self, ranks: Sequence[int]) -> int | None:
        """Return the id of the registered process set that has these ranks."""
        for set_id, registered in self._sets.items():
            if registered.ranks == list(ranks):
                return set_id
        return None

    def _agree_on_ranks(self, kind: Kind, ranks: Sequence[int]) -> None:
        """Return when all ranks have given the same ranks."""
        negotiator = self.negotiator(global_process_set)
        call = Call(Request(kind, None, counts=tuple(ranks)))
        with internal_errors():
            negotiator.submit(call, wait=True).wait()

    def _add_negotiator(self, set_id: int) -> Negotiator:
        ranks = self._sets[set_id].ranks or []
        settings = STATE.settings
        members = tuple(self._instances[rank] for rank in ranks)
        with internal_errors():
            group = STATE.group(f"horovod{set_id}", members)
        agreement = Agreement(ranks, program="horovod", noun="rank")
        negotiator = Negotiator(
            group,
            agreement,
            self._make_carrier(group),
            timeout=settings.timeout,
            stall=settings.stall,
            cycle=self._cycle,
        )
        negotiator.observe(self._timeline)
        return self._negotiators.setdefault(set_id, negotiator)

    def _ranks_of_hosts(self) -> list[list[int]]:
        """Return the ranks on each host that has some, by the first of them."""
        self._check_initialized()
        hosts, ranks = host_numbers(), defaultdict[int, list[int]](list)
        for rank, instance in enumerate(self._instances):
            ranks[hosts[instance]].append(rank)
        return list(ranks.values())

    def _local_ranks(self) -> list[int]:
        """Return the ranks on this host; their order is that of the local ranks."""
        return next(ranks for ranks in self._ranks_of_hosts() if self._rank in ranks)

    def _cross_ranks(self) -> list[int]:
        """Return the rank with this local number on each host that has one."""
        local = self.local_rank()
        return [ranks[local] for ranks in self._ranks_of_hosts() if len(ranks) > local]

    def _in_order(self, instances: tuple[int, ...]) -> tuple[int, ...]:
        """Return the instances in the order of the ranks.

        In an elastic job, instances with the state of the job come first, ordered by
        the generation that they joined: programs broadcast from rank 0.
        """
        if GENERATIONS.current == 0:
            return instances
        with internal_errors(), STATE.group("horovod order", instances) as group:
            own = np.array([GENERATIONS.lacks_state, GENERATIONS.joined])
            keys = [tuple(row.tolist()) for row in group.all_gather(own)]
        key_of = dict(zip(instances, keys, strict=True))
        self.has_lost_state = all(lacks_state for lacks_state, _ in keys)
        return tuple(sorted(instances, key=lambda instance: key_of[instance]))

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
