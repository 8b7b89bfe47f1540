"""The groups of this process.

All of them are in STATE, the only one. Groups are made at first need, are kept until
the process ends, finalises the backend or re-forms, and do not survive a fork.
"""

import atexit
import os
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from math import inf
from threading import Lock, active_count
from typing import TYPE_CHECKING, Any, TypeVar

from popdist import environment as env
from popdist import transports
from popdist.claim import Claim
from popdist.errors import GroupUnusableError, PeerLostError
from popdist.generations import GENERATIONS, LOST, ensure_joined, instance_of_rank
from popdist.job import Job, Place
from popdist.settings import Settings

if TYPE_CHECKING:
    from socket import socket

    from popdist.engine.endpoint import Endpoint
    from popdist.engine.group import Group
    from popdist.engine.hosts.tcp.listener import TcpRoot
    from popdist.engine.hosts.world import JobHosts
    from popdist.engine.meet.meeting import Meeting
    from popdist.engine.meet.pidfds import Pidfd
    from popdist.engine.transport import Transport
    from popdist.recorder import ProcessRecorder

T = TypeVar("T")

# How long instance 0's host may answer nothing at the start of a job that ends by its
# loss: longer than a network fails that works again by itself.
_FIRST_SILENT_SECONDS = 30.0
_REFORMS = (
    "An instance has left its groups because the members of the job change. Call "
    "popdist.elastic.reform(), and make new groups."
)


class _Cell:
    """A value that is created once, even if several threads request it."""

    def __init__(self) -> None:
        self.lock = Lock()
        # Any, because the functions that create the values know their types.
        self.value: Any = None


class Session:
    """The groups of this process, and what they are made with."""

    def __init__(self) -> None:
        self.environ: Mapping[str, str] = os.environ
        # Returns where links by TCP begin, if a store of all instances tells it.
        self.look_up_links: Callable[[], TcpRoot] | None = None
        # The socket of instance 0 for links by TCP, from a re-forming on.
        self._links_listener: socket | None = None
        self._lock = Lock()
        self._cells: dict[Hashable, _Cell] = {}
        # In the order in which they were made.
        self._endpoints: list[Endpoint] = []
        # How often each algorithm ran in groups that the program has closed.
        self._past_runs: Counter[str] = Counter()
        # Made by init(): a view of the job's group, which keeps the group open.
        self._joined: Group | None = None
        # A pidfd of each instance that this process has met.
        self._peers: dict[int, Pidfd] = {}
        self._claim = Claim()
        self._why_unusable: str | None = None
        # Why this process has left its groups, while it waits for a new generation; and
        # how often it has done so.
        self._why_left: str | None = None
        self._times_left = 0
        # Called when a new generation begins.
        self._at_begin: list[Callable[[], None]] = []

    @cached_property
    def settings(self) -> Settings:
        """The user's settings, by the environment that it had at first need."""
        return Settings.decode(self.environ)

    @cached_property
    def job(self) -> Job:
        """The job and the place of this process, read from the environment once.

        poprun may have added this instance to a running job: then it waits for the
        others to re-form.
        """
        if ensure_joined(os.environ, self.settings.timeout):
            # Where links begin is known now.
            self.__dict__.pop("settings", None)
        return Job.decode(self.environ)

    @cached_property
    def recorder(self) -> "ProcessRecorder | None":
        """The recorder of this process's calls; None without a trace."""
        if not self.settings.trace:
            return None
        # Not above: few jobs are traced.
        from popdist.recorder import ProcessRecorder

        index = instance_of_rank(self.environ, self.job.place.rank)
        return ProcessRecorder(self.settings.trace, index)

    def job_hosts(self) -> "JobHosts":
        """Return the hosts of this job's instances.

        Raises:
            ArenaError: `--mpirun local` has started this process, and no MPI.
        """
        return transports.job_hosts_of(
            self.job,
            self.settings.tcp,
            self.look_up_links,
            self._links_listener,
            self._silence_limit(),
        )

    def _silence_limit(self) -> float:
        """Return how long instance 0's host may answer nothing until it is lost."""
        # Not above, as in group().
        from popdist.engine.hosts.tcp.handshake import SILENT_SECONDS

        if GENERATIONS.can_reform:
            return SILENT_SECONDS
        # poprun has connected to all hosts before it started instances on them. Other
        # launchers may not have.
        return _FIRST_SILENT_SECONDS if self.environ.get(env.CONTROL) else inf

    def known_pidfds(self) -> "dict[int, Pidfd]":
        """Return the pidfds of peers that the program has not closed."""
        with self._lock:
            peers = dict(self._peers)
        return {i: pidfd for i, pidfd in peers.items() if pidfd.is_open}

    def check(self) -> None:
        """Raise GroupUnusableError if no group can be used any more."""
        why = self._why_unusable or self._why_left
        if why is not None:
            raise GroupUnusableError(why)

    def prepare(self) -> None:
        """Meet the other instances now, rather than at first need, if that can be.

        All instances of the job must call it. On several hosts it does nothing: a
        program that only asks for its replicas needs no collectives.
        """
        self.check()
        if self.job.place.on_one_host:
            self._joined = self.group("replicas", self.job.members)

    def once(
        self,
        key: Hashable,
        make: Callable[[], T],
        usable: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Return the value of this key, which the first thread creates by `make`.

        A value that is no longer usable is replaced. Threads that ask for different
        keys do not wait for each other: making a group blocks until other instances
        do so, too, in an order of their own.
        """
        self.check()
        with self._lock:
            cell = self._cells.get(key) or self._cells.setdefault(key, _Cell())
        with cell.lock:
            if cell.value is None or not usable(cell.value):
                cell.value = make()
            value: T = cell.value
        return value

    def group(self, purpose: str, members: tuple[int, ...]) -> "Group":
        """Return a view of the group of these instances, where each has one row.

        The first call for each purpose and members is collective: all of them must
        make it, and it blocks until they have; so is the first one after all views
        of the group were closed. Groups of different purposes share no memory and no
        order of calls.
        """
        # Not above: without collectives, numpy and the engine are not needed.
        from popdist.engine.group import Group

        endpoint = self.once(
            ("group", purpose, members),
            lambda: self._make(purpose, members),
            lambda endpoint: not endpoint.closed,
        )
        return Group.over(endpoint, algorithm=self.settings.algorithm)

    def new_group(self, meeting: "Meeting", *, are_instances: bool = False) -> "Group":
        """Return a new group of processes that the program itself numbers.

        All of them must call it, with the same name, and it blocks until they have.

        Args:
            are_instances: The numbers are indices of the job's instances, which may be
                on several hosts; otherwise all processes are on this host.
        """
        # Not above, as in group().
        from popdist.engine.group import Group

        rank, size = meeting.rank, meeting.size
        local = Place(rank=rank, size=size, local_rank=rank, local_size=size)
        place = self.job.place if are_instances and size > 1 else local
        times_left = self._times_left
        transport = self._meet("", place, meeting)
        group = Group(transport, algorithm=self.settings.algorithm)
        # Only from here on does leave() know the group.
        if times_left != self._times_left:
            group.close()
            raise PeerLostError(_REFORMS)
        return group

    def meeting_of(self, purpose: str, members: tuple[int, ...]) -> "Meeting":
        """Return what this process needs to meet these instances of the job."""
        # Not above, as in group().
        from popdist.engine.meet.meeting import Meeting

        return Meeting(
            name=self.job.group_name(purpose, members),
            rank=members.index(self.job.place.rank),
            instances=members,
            timeout=self.settings.timeout,
            stall=self.settings.stall,
            known=self.known_pidfds(),
            ended_file=self.job.ended_file,
            why_over=self.why_over(),
        )

    def why_over(self) -> Callable[[], PeerLostError | None]:
        """Return a function that tells a meeting which begins now that it is over.

        It is over once this process re-forms, or poprun tells that it must.
        """
        return partial(self._why_over, self._times_left)

    def _why_over(self, times_left: int) -> PeerLostError | None:
        """Return why instances meet no more, if the job is about to re-form.

        Args:
            times_left: How often this process had left its groups when they began.
        """
        if self._times_left != times_left:
            return PeerLostError(_REFORMS)
        change = GENERATIONS.pending()
        if change is None or change.kind != LOST:
            return None
        return PeerLostError(f"{change.why} The job re-forms.")

    def _make(self, purpose: str, members: tuple[int, ...]) -> "Endpoint":
        # Not above, as in group().
        from popdist.engine.endpoint import Endpoint

        place, times_left = self.job.place, self._times_left
        if len(members) > 1:
            self._claim.acquire(self.job.shared_name, place.rank)
        else:
            place = Place()
        try:
            meeting = self.meeting_of(purpose, members)
            transport = self._meet(purpose, place, meeting)
        except BaseException:
            with self._lock:
                if not self._endpoints:
                    self._claim.release()
            raise
        endpoint = Endpoint(transport)
        with self._lock:
            if times_left != self._times_left:
                endpoint.close()
                raise PeerLostError(_REFORMS)
            if not self._endpoints:
                # Registered after wait_for_lost_at_exit(), so it is called earlier.
                atexit.unregister(self.close_at_exit)
                atexit.register(self.close_at_exit)
            self._endpoints.append(endpoint)
            self._peers.update(transport.pidfds)
            self._forget_closed()
        return endpoint

    def _meet(self, purpose: str, place: Place, meeting: "Meeting") -> "Transport":
        """Return a new transport, for which this process meets the other members.

        Args:
            place: The place of this process in the set that the transport must reach.
        """
        # Not above, as in group().
        from popdist.engine._core import simd_levels
        from popdist.engine.endpoint import wait_for_lost_at_exit

        self.settings.check_level(simd_levels())
        meet_members = transports.meet_members_of(place, self.job_hosts)
        transport = meet_members(meeting, simd=self.settings.simd)
        if self.recorder is not None:
            members = [instance_of_rank(self.environ, i) for i in transport.instances]
            self.recorder.add_group(transport, purpose, members)
        # On several hosts, the thread of the links waits.
        if meeting.ended_file and self.job.place.on_one_host:
            wait_for_lost_at_exit(self.job.place.rank, meeting.ended_file)
        return transport

    def _forget_closed(self) -> None:
        """Keep of groups that the program has closed only how often algorithms ran."""
        for endpoint in self._endpoints:
            if endpoint.closed:
                self._past_runs.update(endpoint.transport.runs)
        self._endpoints = [each for each in self._endpoints if not each.closed]

    def reductions(self) -> Counter[str]:
        """Return how often each algorithm of reductions ran in this process."""
        runs = self._past_runs.copy()
        for endpoint in self._endpoints:
            runs.update(endpoint.transport.runs)
        return runs

    def _report_runs(self) -> None:
        """Print how often each algorithm ran, if the user has requested it."""
        if self._endpoints and self.settings.reports_runs:
            runs = self.reductions()
            counts = [f"{count} {name}" for name, count in runs.items() if count]
            print(
                f"popdist: instance {self.job.place.rank}: reductions by algorithm: "
                f"{', '.join(counts) or 'none'}.",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        """Leave all groups for good, when their calls under way have ended.

        The others need not do so at the same time.
        """
        if self._why_unusable is None:
            self._why_unusable = (
                "This process has finalised popdist's backend, or is ending, and can "
                "take part in no more collectives. Call popdist.finalizeBackend() "
                "after the last one."
            )
            # Each of them, also if closing another one or writing to stderr fails.
            with ExitStack() as closing:
                closing.callback(self._end_record)
                closing.callback(self._claim.release)
                for endpoint in self._endpoints:
                    closing.callback(endpoint.close)
                self._report_runs()
                self._past_runs = self.reductions()
                self._endpoints.clear()
                self._peers.clear()

    def at_begin(self, function: Callable[[], None]) -> None:
        """Call a function whenever the groups of a new generation may be made."""
        self._at_begin.append(function)

    def leave(self) -> list[int]:
        """Leave all groups, until begin(), without waiting for other instances.

        Calls under way raise PeerLostError, here and on the other members.

        Returns:
            The ranks of instances on hosts that do not answer.

        Raises:
            GroupUnusableError: The process has finalised the backend, or is a fork.
            RuntimeError: The caller is called by a call under way.
        """
        if self._why_unusable is not None:
            raise GroupUnusableError(self._why_unusable)
        # Not above, as in group().
        from popdist.engine.endpoint import leave_all
        from popdist.engine.hosts import links_thread

        with self._lock:
            self._why_left = (
                "This process has left its groups. It has new ones when "
                "popdist.elastic.reform() returns, and none after an error of reform()."
            )
            self._times_left += 1
        silent = links_thread.unanswering()
        links_thread.abandon()
        try:
            leave_all(PeerLostError(_REFORMS))
        except RuntimeError:
            # reform() does not wait: it was called in the middle of a call.
            self._why_left = None
            raise
        links_thread.end_abandoned()
        if self._links_listener is not None:
            self._links_listener.close()
        with self._lock:
            self._forget_closed()
            self._peers.clear()
            self._cells = {}
        self._claim.release()
        return silent

    def begin(self) -> None:
        """Make groups of the members that the environment now has."""
        for name in ("job", "settings"):
            self.__dict__.pop(name, None)
        self._joined = self.look_up_links = self._why_left = None
        self._links_listener = self._listen_for_links()
        for function in self._at_begin:
            function()

    def _listen_for_links(self) -> "socket | None":
        """Listen at instance 0's address, before another process gets the port."""
        tcp, place = self.settings.tcp, self.job.place
        if tcp is None or place.on_one_host or place.rank:
            return None
        # Not above, as in group().
        from popdist.engine.hosts.tcp.listener import TcpRoot, listen_as_root

        return listen_as_root(TcpRoot(*tcp))

    def _end_record(self) -> None:
        recorder: ProcessRecorder | None = self.__dict__.get("recorder")
        if recorder is not None:
            # Not above, as in group().
            from popdist.engine.spec.operations import known_names

            recorder.close(known_names())

    def close_at_exit(self) -> None:
        """Leave all groups, unless that would keep the process from ending.

        Remaining threads may wait in calls for instances that wait for this one. These
        instances detect that it has ended.
        """
        if active_count() == 1:
            if not self.job.place.on_one_host:
                # Not above, as in group().
                from popdist.engine.hosts.links_thread import note_exit

                note_exit()
            self.close()
        elif self._why_unusable is None:
            self._report_runs()

    def after_fork(self) -> None:
        """Give up, in a new child, the groups of its parent; they are not the child's.

        A process that forks before it has groups may make them in the child.
        """
        # Another thread of the parent may have held it.
        self._lock = Lock()
        if self._why_unusable is None and self._endpoints:
            self._why_unusable = (
                f"This process was forked from instance {self.job.place.rank} after "
                "that had joined its group, and cannot take part in collectives. Make "
                "the calls in that instance, or fork before popdist.init() and make "
                "them in the child alone."
            )
        elif self._why_unusable is None:
            self._cells = {}
        # The parent's, perhaps in the middle of its first meeting.
        self._claim.release()
        if self._links_listener is not None:
            # Otherwise others could connect to it when the parent has died.
            self._links_listener.close()
            self._links_listener = None
        # The files are the parent's.
        self.__dict__.pop("recorder", None)


STATE = Session()
os.register_at_fork(after_in_child=STATE.after_fork)
