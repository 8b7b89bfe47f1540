"""The state of Horovod in this process: its rank, and the process sets.

All of it is in WORLD, the only one.
"""

import atexit
import os
from collections.abc import Iterable, Mapping, Sequence
from threading import RLock

from popdist.job import Place
from popdist.session import STATE

from ...common.exceptions import HorovodInternalError
from ...common.process_sets import ProcessSet, checked_ranks, global_process_set
from ...negotiation.call_requests import Kind, Request
from ...negotiation.negotiator import Call, Negotiator
from ..execution.carrier import Carrier
from .timeline import Timeline

_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"
_TIMELINE = "HOROVOD_TIMELINE"
_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES"
# In milliseconds.
_CYCLE_TIME = "HOROVOD_CYCLE_TIME"


class World:
    """The ranks of a job, as one of them sees them."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._place: Place | None = None
        # The instance of each rank.
        self._instances: tuple[int, ...] = ()
        self._sets: dict[int, ProcessSet] = {}
        self._negotiators: dict[int, Negotiator] = {}
        self._dynamic = False
        self._timeline: Timeline | None = None

    @property
    def initialized(self) -> bool:
        """Whether init() has been called, and not shutdown() since."""
        return self._place is not None

    def init(
        self,
        ranks: Iterable[int] | None,
        process_sets: Sequence[ProcessSet | Iterable[int]],
        dynamic: bool,
    ) -> None:
        """Meet the other ranks, and register process sets. A second call does nothing.

        Args:
            ranks: The instances that are ranks; None for all.
            process_sets: The same on all ranks. Of equal ones the first counts.
            dynamic: Whether process sets can be added later.
        """
        with self._lock:
            if self.initialized:
                return
            job = STATE.job
            STATE.check()
            instances = job.members if ranks is None else tuple(checked_ranks(ranks))
            if not set(instances) <= set(job.members) or (
                job.place.rank not in instances
            ):
                raise ValueError(
                    f"hvd.init() got the ranks {list(instances)}, but the job has "
                    f"{len(job.members)} instances, of which this is "
                    f"{job.place.rank}. Give ranks of the job, this one included, or "
                    "none for all of them."
                )
            self._instances, self._place = instances, job.place
            self._dynamic = dynamic or os.environ.get(_DYNAMIC, "0") not in ("", "0")
            try:
                self._start(process_sets)
            except BaseException:
                self.shut_down()
                raise
            atexit.register(self.shut_down)

    def _start(self, process_sets: Sequence[ProcessSet | Iterable[int]]) -> None:
        self._register(global_process_set, list(range(self.size())))
        # Where they do not, the first call says that there are no collectives.
        if STATE.reaches_all:
            self.negotiator(global_process_set)
        for one in process_sets:
            process_set = one if isinstance(one, ProcessSet) else ProcessSet(one)
            ranks = process_set.ranks or []
            if self._find(ranks) is None:
                self.add(process_set)
        path = os.environ.get(_TIMELINE, "")
        if path and path != "DYNAMIC":
            self.start_timeline(path, os.environ.get(_MARK_CYCLES, "") == "1")

    def shut_down(self) -> None:
        """Leave all process sets. Calls under way fail, on all ranks."""
        with self._lock:
            if not self.initialized:
                return
            atexit.unregister(self.shut_down)
            self.stop_timeline()
            for negotiator in reversed(self._negotiators.values()):
                negotiator.shut_down()
            self._negotiators.clear()
            for process_set in self._sets.values():
                process_set.invalidate()
            self._sets.clear()
            self._place = None

    def rank(self) -> int:
        """Return the number of this process among the ranks."""
        return self._instances.index(self._here().rank)

    def size(self) -> int:
        """Return the number of ranks."""
        self._here()
        return len(self._instances)

    def local_place(self) -> tuple[int, int]:
        """Return the number of this process among those of its host, and how many."""
        place = self._here()
        if not place.on_one_host:
            return place.local_rank, place.local_size
        return self.rank(), self.size()

    def cross_place(self) -> tuple[int, int]:
        """Return the number of this host among the job's, and how many they are.

        Raises:
            ValueError: The launcher does not tell them.
        """
        place = self._here()
        if place.host_index is None or place.hosts is None:
            raise ValueError(
                f"The job has {place.size} instances, {place.local_size} of them on "
                "this host, but its launcher does not tell the numbers of hosts, which "
                "hvd.cross_rank() and hvd.cross_size() return. Start it with torchrun "
                "or srun, which do."
            )
        return place.host_index, place.hosts

    def is_homogeneous(self) -> bool:
        """Return whether all hosts have the same number of ranks, as far as known."""
        place = self._here()
        return place.size % place.local_size == 0

    def sets(self) -> Mapping[int, list[int]]:
        """Return the ranks of all registered process sets, by their ids."""
        self._here()
        return {number: list(one.ranks or ()) for number, one in self._sets.items()}

    def add_dynamically(self, process_set: ProcessSet) -> None:
        """Register a process set after init(). All ranks must call it."""
        self._here()
        if not self._dynamic:
            raise ValueError(
                "Process sets can be added after hvd.init() only in a program that "
                "called hvd.init(process_sets='dynamic'), or that runs with "
                f"{_DYNAMIC}=1. Do so, or give them to hvd.init()."
            )
        self.add(process_set)

    def add(self, process_set: ProcessSet) -> None:
        """Register a process set. All ranks must call it, in the same order.

        Raises:
            ValueError: There is one of these ranks, or there are no such ranks.
            HorovodInternalError: The ranks have given different sets.
        """
        ranks = process_set.ranks or []
        if ranks and ranks[-1] >= self.size():
            raise ValueError(
                f"A process set of the ranks {ranks} is given, but there are only "
                f"{self.size()} ranks, from 0."
            )
        known = self._find(ranks)
        if known is not None:
            raise ValueError(
                f"Process set {known} has the ranks {ranks} already. Use that one."
            )
        self._agree(Kind.ADD_PROCESS_SET, ranks)
        number = next(n for n in range(len(self._sets) + 1) if n not in self._sets)
        self._register(process_set, ranks)
        if process_set.included() and len(self._instances) > 1:
            self.negotiator(process_set)
        assert process_set.process_set_id == number

    def remove(self, process_set: ProcessSet) -> bool:
        """Forget a process set. All ranks must call it, in the same order.

        Returns whether it could be removed: the one of all ranks cannot.
        """
        number = process_set.process_set_id
        if not number or self._sets.get(number) is None:
            return False
        self._agree(Kind.REMOVE_PROCESS_SET, process_set.ranks or [])
        negotiator = self._negotiators.pop(number, None)
        if negotiator is not None:
            negotiator.shut_down()
        self._sets.pop(number).invalidate()
        process_set.invalidate()
        return True

    def negotiator(self, process_set: ProcessSet) -> Negotiator:
        """Return what makes the calls of a process set.

        Raises:
            ValueError: The set is not registered, or this rank is not in it.
            HorovodInternalError: The ranks cannot reach each other.
        """
        self._here()
        number = process_set.process_set_id
        found = None if number is None else self._negotiators.get(number)
        if found is not None:
            return found
        if number is None or number not in self._sets:
            raise ValueError(
                f"{process_set} is not registered. Give it to hvd.init(), or call "
                "hvd.add_process_set()."
            )
        if not process_set.included():
            raise ValueError(
                f"Rank {self.rank()} is not in {process_set}, so it makes no calls in "
                "it. Make them on its own ranks only."
            )
        with self._lock:
            if number not in self._negotiators:
                self._negotiators[number] = self._make(number, process_set)
            return self._negotiators[number]

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """Write a timeline of calls to a file, on rank 0. It replaces another one."""
        self._here()
        self.stop_timeline()
        if self.rank() == 0:
            self._timeline = Timeline(path, mark_cycles)
            for negotiator in self._negotiators.values():
                negotiator.observer = self._timeline

    def stop_timeline(self) -> None:
        """End the timeline, if there is one; its file is complete then."""
        for negotiator in self._negotiators.values():
            negotiator.observer = None
        if self._timeline is not None:
            self._timeline.close()
            self._timeline = None

    def _here(self) -> Place:
        if self._place is None:
            raise ValueError(
                "Horovod has not been initialized; use hvd.init() before any other "
                "call of it."
            )
        return self._place

    def _make(self, number: int, process_set: ProcessSet) -> Negotiator:
        ranks = process_set.ranks or []
        settings = STATE.job.settings
        members = tuple(self._instances[rank] for rank in ranks)
        try:
            group = STATE.group(f"horovod{number}", members)
        except Exception as error:
            raise HorovodInternalError(str(error)) from error
        made = Negotiator(
            group,
            ranks,
            Carrier(group.transport),
            timeout=settings.timeout,
            stall=settings.stall,
            cycle=_cycle_seconds(os.environ),
        )
        made.observer = self._timeline
        return made

    def _register(self, process_set: ProcessSet, ranks: Sequence[int]) -> None:
        number = next(n for n in range(len(self._sets) + 1) if n not in self._sets)
        process_set.register(number, ranks, self.rank())
        self._sets[number] = process_set

    def _find(self, ranks: Sequence[int]) -> int | None:
        for number, known in self._sets.items():
            if known.ranks == list(ranks):
                return number
        return None

    def _agree(self, kind: Kind, ranks: Sequence[int]) -> None:
        """Return when all ranks have given the same ranks."""
        negotiator = self.negotiator(global_process_set)
        call = Call(Request(kind, None, counts=tuple(ranks)))
        negotiator.submit(call, wait=True)
        negotiator.wait(call)


def _cycle_seconds(environ: Mapping[str, str]) -> float:
    text = environ.get(_CYCLE_TIME) or "1"
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    # NaN is not in it, either.
    if not 0 <= milliseconds <= 1000:
        raise ValueError(
            f"{_CYCLE_TIME} is {text!r}, but must be a number of milliseconds from 0 "
            "to 1000. Set it so, or unset it."
        )
    return milliseconds / 1000


WORLD = World()
