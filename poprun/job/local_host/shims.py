"""The shims of a job on this host: their messages -> events, and messages to them."""

import errno
import os
import time
from collections.abc import Callable, Collection

from poprun.helpers import protocol
from poprun.helpers.channel import Channel
from poprun.helpers.job_files import LOCK
from poprun.job.control_socket import Messages
from poprun.job.events import (
    Clean,
    Connected,
    Event,
    Exited,
    Refused,
    Rejected,
    Remains,
    ShimLeft,
    ShimLost,
    StacksAvailable,
    Started,
)
from poprun.job.values import Job
from poprun.stdio.readers import Streams
from poprun.stdio.router import STREAMS
from poprun.stdio.stdin import StdinFeeder
from poprun.stdio.stream_ends import DescriptorSource


class Shims:
    """The connections to the shims, and how far each of their instances is.

    Args:
        host: The name of their host.
        ranks: Those of the instances there.
        streams: Gets the read ends of the instances' streams.
        emit: Gets the events.
        know: Is called with the pid and the start time of each shim.
    """

    def __init__(
        self,
        job: Job,
        host: str,
        ranks: Collection[int],
        streams: Streams,
        stdin: StdinFeeder,
        *,
        emit: Callable[[Event], None],
        know: Callable[[int, int], None],
    ) -> None:
        self._job = job
        self._host = host
        self._ranks = ranks
        self._streams = streams
        self._stdin = stdin
        self._emit = emit
        self._know = know
        # Whether shims that connect start their programs, or leave.
        self.starts_instances = True
        # Shims that end now were released.
        self.are_leaving = False
        self._links: dict[int, Channel] = {}
        self._connected: set[int] = set()
        self._started: set[int] = set()
        self._clean: set[int] = set()
        self._lost: set[int] = set()  # whose shim has gone without that
        self._programs: dict[int, int] = {}  # the rank of each, by its pid
        # Processes that may not be signalled.
        self._remaining: set[int] = set()

    @property
    def are_clean(self) -> bool:
        """Whether each has seen all processes of its instance end."""
        is_complete = len(self._clean) == len(self._ranks)
        return is_complete and not self._lost and not self._remaining

    def rank_of_program(self, pid: int) -> int | None:
        """Return the instance whose program a process is; None if it is none's."""
        return self._programs.get(pid)

    def accept(self, link: Channel, fields: list[bytes]) -> bool:
        """Take in a shim that has connected, and let it start its program or leave."""
        rank, pid, start = (int(fields[i]) for i in (2, 4, 5))
        if rank not in self._ranks or rank in self._connected:
            return False
        self._know(pid, start)
        self._links[rank] = link
        self._connected.add(rank)
        self._emit(Connected(rank))
        if self.starts_instances:
            self._send_spec(rank, link)
        else:
            link.send(protocol.pack(protocol.RELEASE))
            self._emit(Clean(rank, 0))
        return True

    def send(self, message: bytes) -> None:
        """Send a message to all."""
        for link in self._links.values():
            link.send(message)

    def send_to(self, rank: int, message: bytes) -> None:
        """Send a message to the shim of one instance, if that is connected."""
        if rank in self._links:
            self._links[rank].send(message)

    def receive(self, link: Channel, messages: Messages | None) -> None:
        """Act on messages of a shim; None when its connection has ended."""
        rank = next(r for r, shim in self._links.items() if shim is link)
        for kind, fields in messages or ():
            twice = kind == protocol.STARTED and rank in self._started
            if twice or not protocol.is_report(kind, fields):
                self._emit(Rejected(f"a message of kind {kind} made no sense"))
                messages = None
                break
            self._on_report(rank, link, kind, fields)
        if messages is None:
            self._on_lost(rank)

    def _send_spec(self, rank: int, link: Channel) -> None:
        try:
            descriptor = self._stdin.descriptor_for(rank)
        except OSError as error:
            link.send(protocol.pack(protocol.RELEASE))
            self._clean.add(rank)
            self._emit(Refused(rank, error.errno or 0, "", "making a pipe for stdin"))
            return
        sent = () if descriptor is None else (descriptor,)
        if self._job.directory:
            lock = os.path.join(os.fsencode(self._job.directory), LOCK)
            link.send(protocol.pack(protocol.HOLD, lock))
        link.send(self._job.specs[rank], sent)
        if descriptor is not None:
            os.close(descriptor)

    def _on_report(
        self, rank: int, link: Channel, kind: int, fields: list[bytes]
    ) -> None:
        if kind == protocol.STARTED:
            self._on_started(rank, link, fields)
        elif kind == protocol.REFUSED:
            self._clean.add(rank)
            about, call = map(os.fsdecode, fields[1:])
            self._emit(Refused(rank, int(fields[0]), about, call))
        elif kind == protocol.EXITED:
            self._on_exited(rank, fields)
        elif kind == protocol.REMAINS:
            self._on_remains(fields)
        elif kind == protocol.STACKS:
            pids = [int(pid) for pid in fields[0].split(b",") if pid != b"0"]
            self._emit(StacksAvailable(rank, tuple(pids)))
        elif kind == protocol.CLEAN:
            self._clean.add(rank)
            self._emit(Clean(rank, int(fields[0])))

    def _on_started(self, rank: int, link: Channel, fields: list[bytes]) -> None:
        streams = STREAMS[:1] if self._job.merge_stderr else STREAMS
        if len(link.descriptors) < len(streams):
            # The kernel has dropped what this process had no number left for.
            link.send(protocol.pack(protocol.KILL))
            self._clean.add(rank)
            self._emit(Refused(rank, errno.EMFILE, "", "receiving stdout and stderr"))
            return
        for stream in streams:
            source = DescriptorSource(link.descriptors.pop(0))
            self._streams.open(source, rank, stream)
        pid = int(fields[0])
        self._programs[pid] = rank
        self._started.add(rank)
        cpus = tuple(int(cpu) for cpu in fields[2].split(b","))
        self._emit(Started(rank, pid, cpus, memory_is_bound=fields[3] == b"1"))

    def _on_remains(self, fields: list[bytes]) -> None:
        remains = Remains.read(fields, self._host)
        if remains.pid not in self._remaining:
            self._remaining.add(remains.pid)
            self._emit(remains)

    def _on_exited(self, rank: int, fields: list[bytes]) -> None:
        status, at, user, system, peak = (int(field) for field in fields[:5])
        self._emit(
            Exited(
                rank=rank,
                status=status,
                at_ns=min(at, time.monotonic_ns()),
                user_s=user / 1e6,
                system_s=system / 1e6,
                peak_kib=peak,
                by_itself=fields[5] == protocol.BY_ITSELF,
            )
        )

    def _on_lost(self, rank: int) -> None:
        self._links.pop(rank).close()
        if rank not in self._clean:
            self._lost.add(rank)
        if rank not in self._clean and not self.are_leaving:
            self._clean.add(rank)
            self._emit(ShimLost(rank))
        elif self.are_leaving:
            self._emit(ShimLeft(rank))
