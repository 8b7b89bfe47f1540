"""The registered process sets of this process, and what makes the calls of each."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from threading import RLock

from popdist.engine.group import Group
from popdist.hosts import host_numbers, start_links
from popdist.negotiation.agreement import Agreement
from popdist.negotiation.call_requests import Kind, Request
from popdist.negotiation.calls import Call, CarryOut
from popdist.negotiation.negotiator import Negotiator
from popdist.session import STATE

from .exceptions import internal_errors
from .process_sets import ProcessSet, global_process_set
from .timeline import Timeline


class RegisteredSets:
    """The process sets that hvd.init() and hvd.add_process_set() have registered.

    `dynamic` is whether sets may be added after hvd.init().
    """

    def __init__(
        self,
        instances: Sequence[int],
        make_carrier: Callable[[Group], CarryOut],
        dynamic: bool,
        cycle: float,
    ) -> None:
        """Begin without sets.

        Args:
            instances: The instance of each rank.
            cycle: How many seconds to collect requests that nothing waits for.
        """
        self.instances = instances
        self._cycle = cycle
        self._make_carrier = make_carrier
        self.dynamic = dynamic
        self.rank = instances.index(STATE.job.place.rank)
        self.size = len(instances)
        self._lock = RLock()
        self._sets: dict[int, ProcessSet] = {}
        self._negotiators: dict[int, Negotiator] = {}
        self._timeline: Timeline | None = None

    def begin(self, process_sets: Sequence[ProcessSet | Iterable[int]]) -> None:
        """Register the set of all ranks, and others; of equal ones the first counts."""
        if self.size < STATE.job.place.size:
            with internal_errors():
                start_links(tuple(self.instances))
        self._register(global_process_set, range(self.size))
        self.negotiator(global_process_set)
        for ranks in process_sets:
            process_set = ranks if isinstance(ranks, ProcessSet) else ProcessSet(ranks)
            if self._id_of_ranks(process_set.ranks or []) is None:
                self.add(process_set)

    def add(self, process_set: ProcessSet) -> None:
        """Register a process set on all ranks, which must call this.

        Raises:
            ValueError: There is a set of these ranks, or there are no such ranks.
            HorovodInternalError: The ranks have given different sets.
        """
        ranks = process_set.ranks or []
        if ranks and ranks[-1] >= self.size:
            raise ValueError(
                f"A process set of the ranks {ranks} is given, but there are only "
                f"{self.size} ranks, from 0."
            )
        existing = self._id_of_ranks(ranks)
        if existing is not None:
            raise ValueError(
                f"Process set {existing} has the ranks {ranks} already. Use that one."
            )
        self._agree_on_ranks(Kind.ADD_PROCESS_SET, ranks)
        self._register(process_set, ranks)
        if process_set.included() and self.size > 1:
            self.negotiator(process_set)

    def remove(self, process_set: ProcessSet) -> bool:
        """Forget a set on all ranks, which must call this; return whether it could be.

        The set of all ranks cannot.
        """
        set_id = process_set.process_set_id
        if not set_id or self._sets.get(set_id) is None:
            return False
        self._agree_on_ranks(Kind.REMOVE_PROCESS_SET, process_set.ranks or [])
        negotiator = self._negotiators.pop(set_id, None)
        if negotiator is not None:
            negotiator.shut_down(f"Rank {self.rank} has removed {process_set}.")
        self._sets.pop(set_id).invalidate()
        process_set.invalidate()
        return True

    def id_of(self, process_set: ProcessSet) -> int:
        """Return the id of a set.

        Raises:
            ValueError: It is not registered.
        """
        set_id = process_set.process_set_id
        if set_id is None or set_id not in self._sets:
            raise ValueError(
                f"{process_set} is not registered. Give it to hvd.init(), or call "
                "hvd.add_process_set()."
            )
        return set_id

    def negotiator(self, process_set: ProcessSet) -> Negotiator:
        """Return what makes the calls of a set.

        Raises:
            ValueError: The set is not registered, or this rank is not in it.
            HorovodInternalError: The ranks cannot reach each other.
        """
        set_id = process_set.process_set_id
        existing = None if set_id is None else self._negotiators.get(set_id)
        if existing is not None:
            return existing
        # Not while another thread shuts Horovod down.
        with self._lock:
            set_id = self.id_of(process_set)
            if not process_set.included():
                raise ValueError(
                    f"Rank {self.rank} is not in {process_set}, so it makes no calls "
                    "in it. Make them on its own ranks only."
                )
            if set_id not in self._negotiators:
                self._negotiators[set_id] = self._make_negotiator(process_set)
            return self._negotiators[set_id]

    def observe(self, timeline: Timeline | None) -> None:
        """Write the calls of all sets to a timeline from now on, or to none."""
        self._timeline = timeline
        for negotiator in self._negotiators.values():
            negotiator.observe(timeline)

    def ranks_of_hosts(self) -> list[list[int]]:
        """Return the ranks on each host that has some, by the first of them."""
        hosts, ranks = host_numbers(), defaultdict[int, list[int]](list)
        for rank, instance in enumerate(self.instances):
            ranks[hosts[instance]].append(rank)
        return list(ranks.values())

    def local_ranks(self) -> list[int]:
        """Return the ranks on this host; their order is that of the local ranks."""
        return next(ranks for ranks in self.ranks_of_hosts() if self.rank in ranks)

    def cross_ranks(self, local_rank: int) -> list[int]:
        """Return the rank with this local rank on each host that has one."""
        hosts = self.ranks_of_hosts()
        return [ranks[local_rank] for ranks in hosts if len(ranks) > local_rank]

    def ranks_by_id(self) -> dict[int, list[int]]:
        """Return the ranks of all sets, by the sets' ids."""
        return {set_id: list(each.ranks or ()) for set_id, each in self._sets.items()}

    def shut_down(self) -> None:
        """End the calls of all sets, and forget the sets."""
        with self._lock:
            for negotiator in reversed(self._negotiators.values()):
                negotiator.shut_down(f"Rank {self.rank} has shut down Horovod.")
            self._negotiators.clear()
            for process_set in self._sets.values():
                process_set.invalidate()
            self._sets.clear()
            global_process_set.ranks = None

    def _make_negotiator(self, process_set: ProcessSet) -> Negotiator:
        ranks = process_set.ranks or []
        settings = STATE.settings
        members = tuple(self.instances[rank] for rank in ranks)
        with internal_errors():
            group = STATE.group(f"horovod{process_set.process_set_id}", members)
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
        return negotiator

    def _register(self, process_set: ProcessSet, ranks: Sequence[int]) -> None:
        set_id = next(n for n in range(len(self._sets) + 1) if n not in self._sets)
        process_set.register(set_id, ranks, self.rank)
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
