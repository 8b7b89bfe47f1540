"""The machine that this process runs on: poprun's own, or the machine of an agent.

Shims connect to it, and processes of their instances. Their reports on the control
socket become events; the supervisor's decisions are sent to the shims.
"""

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from popdist import environment as env
from poprun.host.attachments import Attacher, Attachments
from poprun.host.control_socket import ControlSocket, Handler, Messages
from poprun.host.finalizing import Finalizing
from poprun.host.host_link import ClockReading
from poprun.host.member_connections import MemberConnections
from poprun.host.record_pieces import record_pieces
from poprun.host.usage import UsageReader
from poprun.job.values import HostJob
from poprun.output.stream_ends import (
    STREAMS,
    DescriptorSource,
    InputFeeder,
    OutputReader,
)
from poprun.output.waiter import Interest
from poprun.wire import codec, protocol
from poprun.wire.channel import Channel, peer_of
from poprun.wire.events import (
    AloneInMpi,
    Clean,
    Connected,
    DebuggerReady,
    Event,
    Exited,
    Orphaned,
    PromptOver,
    PromptShown,
    Refused,
    Rejected,
    ShimLeft,
    ShimLost,
    StacksAvailable,
    Started,
    TorchGroupsMade,
)


class LocalHost:
    """The HostLink to the machine that this process runs on.

    Args:
        specs: The SPEC messages of its instances, in rank order.
        add_shim: Is called with the connection, pid and start time of each shim.
        handlers: More handlers for the control socket.
        devices: Attaches processes; None for a job without IPUs.
        start_shims: Starts the shims again that were lost; returns whether it can. On
            other hosts poprun does so.
    """

    # The guard ends leftover processes here.
    finished = True
    clock_readings: Sequence[ClockReading] = ()
    # The instances write them to the caller's files.
    results: Mapping[int, bytes] = MappingProxyType({})

    def __init__(
        self,
        job: HostJob,
        specs: Sequence[bytes],
        add_shim: Callable[[Channel, int, int], None],
        handlers: Mapping[int, Handler] = MappingProxyType({}),
        devices: Attacher | None = None,
        start_shims: Callable[[], bool] = lambda: True,
    ) -> None:
        self._job = job
        self.name = job.name
        self.ranks = job.ranks
        self._specs = dict(zip(job.ranks, specs, strict=True))
        self._add_shim, self._start_shims = add_shim, start_shims
        self._more_handlers = handlers
        self._finalizing = Finalizing(job.num_instances)
        self._attachments = Attachments(devices, job.devices)
        # Whether shims that connect start their programs, or leave.
        self._starts_instances = True
        # Whether shims that end now have been released.
        self._has_released = False
        # The connections to the shims, by rank, and how far their instances are.
        self._shims: dict[int, Channel] = {}
        self._connected: set[int] = set()
        self._clean: set[int] = set()
        # The instances that have lost their shim.
        self._lost: set[int] = set()
        # The rank of each program that has started, by its pid.
        self._programs: dict[int, int] = {}
        # The ranks of ended programs.
        self._exited: set[int] = set()
        self._usage = UsageReader()
        # The instances at a prompt of their debugger, by connection.
        self._prompts: dict[Channel, int] = {}
        # The instances that have made process groups of torch.
        self._uses_torch: set[int] = set()
        # The instances that wait for another shim, because theirs was lost.
        self._awaited: set[int] = set()
        # Processes that may not be signalled.
        self._remaining: set[int] = set()

    def listen(self) -> None:
        """Listen for shims, and for processes of their instances."""
        self.control = ControlSocket(self._job.control, len(self.ranks))

    def start(
        self, emit: Callable[[Event], None], streams: OutputReader, stdin: InputFeeder
    ) -> None:
        """Serve those that connect, from now on."""
        self._emit = emit
        self._streams = streams
        self._stdin = stdin
        self._members = MemberConnections(emit)
        handlers = {
            protocol.HELLO: Handler(accept=self._on_hello, receive=self._on_shim),
            protocol.FINALIZING: Handler(
                accept=self._on_finalizing, receive=self._on_interpreter
            ),
            protocol.ALONE_IN_MPI: Handler(accept=self._on_alone),
            protocol.TORCH_GROUPS: Handler(accept=self._on_torch_groups),
            protocol.DEBUGGER: Handler(
                accept=self._on_debugger, receive=self._on_prompt
            ),
            protocol.ATTACH: Handler(
                accept=self._on_attach, receive=self._attachments.receive
            ),
            protocol.ELASTIC: Handler(
                accept=self._on_elastic, receive=self._members.receive
            ),
            **self._more_handlers,
        }
        self.control.handle_with(handlers, emit)

    # --- For the supervisor's loop.

    def interests(self, now: float) -> Iterator[Interest]:
        return self.control.interests(now)

    def deadline(self, now: float) -> float:
        return min(self._finalizing.deadline(), self.control.deadline(now))

    def tick(self, now: float) -> None:
        self.control.tick(now)
        for event in self._finalizing.due(now):
            self._emit(event)

    def take_in_losses(self) -> None:
        self.control.read_closed()

    def suspect_loss(self) -> None:
        """Do nothing: poprun runs here."""

    @property
    def call_records(self) -> Iterable[tuple[str, bytes]]:
        return record_pieces(self._job.directory)

    # --- The supervisor's decisions.

    @property
    def is_clean(self) -> bool:
        is_complete = len(self._clean) == len(self.ranks)
        return is_complete and not self._lost and not self._remaining

    def tell(self, kind: int, *values: Any) -> None:
        match kind, *values:
            case (protocol.STOP_STARTING,):
                self._starts_instances = False
                self._give_up_shims(self.ranks)
            case ((protocol.SIGNAL | protocol.KILL | protocol.RELEASE), *_):
                self._has_released |= kind == protocol.RELEASE
                for shim in self._shims.values():
                    shim.tell(kind, *values)
            case protocol.INTERRUPT_INSTANCE, rank:
                self._tell_shim(rank, protocol.INTERRUPT)
            case protocol.SHOW_STACKS_OF, rank, pid:
                self._tell_shim(rank, protocol.SHOW_STACKS, pid)
            case (protocol.MEASURE,):
                self._measure()
            case protocol.NOTE_END, rank:
                self._finalizing.end(rank)
                self._append_end(self._job.ended_file(), rank)
            case protocol.NOTE_LEFT, generation, rank:
                self._append_end(self._job.ended_file(generation), rank)
            case protocol.TELL_MEMBER, rank, message, content:
                self._members.tell(rank, message, content)
            case protocol.START_AGAIN, rank:
                self._start_again(rank)
            case protocol.KILL_INSTANCE, rank:
                self._tell_shim(rank, protocol.KILL)
                self._give_up_shims([rank])

    def _tell_shim(self, rank: int, kind: int, *values: int) -> None:
        if rank in self._shims:
            self._shims[rank].tell(kind, *values)

    def _measure(self) -> None:
        running = {p: r for p, r in self._programs.items() if r not in self._exited}
        for usage in self._usage.read(running):
            self._emit(usage)

    def _append_end(self, path: str, rank: int) -> None:
        # On a full disk, or without the directory, they learn of it by their timeout.
        with suppress(OSError), open(path, "ab") as file:
            file.write(b"%d\n" % rank)

    def _start_again(self, rank: int) -> None:
        """Let the shim of an instance that has ended start its program again."""
        if not self._starts_instances:
            return
        has_ended = rank not in self._shims and rank in self._connected
        if has_ended and rank not in self._lost:
            # No event has reported that the shim has ended after its program.
            self._lost.add(rank)
            self._emit(ShimLost(rank=rank))
            return
        self._clean.discard(rank)
        self._exited.discard(rank)
        for pid in [pid for pid, r in self._programs.items() if r == rank]:
            del self._programs[pid]
        self._specs[rank] = newcomers_spec(self._specs[rank])
        if rank in self._shims:
            self._shims[rank].send(self._specs[rank])
            return
        self._connected.discard(rank)
        self._awaited.add(rank)
        if not self._start_shims():
            self._awaited.discard(rank)
            self._emit(ShimLost(rank=rank, is_final=True))

    def _give_up_shims(self, ranks: Iterable[int]) -> None:
        """Wait no longer for the shims of instances that are started again."""
        for rank in self._awaited & {*ranks}:
            self._awaited.discard(rank)
            self._connected.add(rank)
            self._clean.add(rank)
            self._emit(Clean(rank=rank, left_behind=0))

    def finish(self) -> None:
        self.tell(protocol.RELEASE)

    def close(self) -> None:
        self.control.close()

    # --- Shims.

    def _on_hello(self, link: Channel, fields: list[Any]) -> bool:
        """Take in a shim that has connected, and let it start its program or leave."""
        rank, _, pid, start = fields
        if rank not in self.ranks or rank in self._connected:
            return False
        self._add_shim(link, pid, start)
        self._shims[rank] = link
        self._connected.add(rank)
        self._awaited.discard(rank)
        self._emit(Connected(rank=rank))
        if self._starts_instances:
            self._send_spec(rank, link)
        else:
            link.tell(protocol.RELEASE)
            self._emit(Clean(rank=rank, left_behind=0))
        return True

    def _on_shim(self, link: Channel, messages: Messages | None) -> None:
        """Act on messages of a shim; None when its connection has ended."""
        rank = next(r for r, shim in self._shims.items() if shim is link)
        for kind, fields in messages or ():
            try:
                if kind == protocol.STARTED and rank in self._programs.values():
                    raise ValueError("it has started already")
                values = codec.read(kind, fields)
            except ValueError:
                self._emit(Rejected(why=f"a message of kind {kind} was not valid"))
                messages = None
                break
            self._on_report(rank, link, kind, values)
        if messages is None:
            self._on_lost(rank)

    def _send_spec(self, rank: int, link: Channel) -> None:
        try:
            descriptor = self._stdin.descriptor_for(rank)
        except OSError as error:
            link.tell(protocol.RELEASE)
            self._on_refused(rank, error.errno or 0, "", "creating a pipe for stdin")
            return
        sent = () if descriptor is None else (descriptor,)
        link.send(self._specs[rank], sent)
        if descriptor is not None:
            os.close(descriptor)

    def _on_report(
        self, rank: int, link: Channel, kind: int, values: list[Any]
    ) -> None:
        match kind, *values:
            case protocol.STARTED, pid, _, cpus, memory_is_bound:
                if self._open_streams(rank, link):
                    self._programs[pid] = rank
                    is_bound = memory_is_bound == 1
                    started = Started(
                        rank=rank, pid=pid, cpus=cpus, memory_is_bound=is_bound
                    )
                    self._emit(started)
            case protocol.REFUSED, number, tried, call:
                self._on_refused(rank, number, tried, call)
            case protocol.EXITED, *_:
                self._exited.add(rank)
                self._emit(_exited(rank, *values))
            case protocol.REMAINS, pid, user, command:
                self._on_remains(pid, user, command)
            case (protocol.ORPHANED,):
                self._emit(Orphaned(rank=rank))
            case protocol.STACKS, pids:
                pids = tuple(pid for pid in pids if pid)
                self._emit(StacksAvailable(rank=rank, pids=pids))
            case protocol.CLEAN, left_behind:
                self._clean.add(rank)
                self._emit(Clean(rank=rank, left_behind=left_behind))

    def _open_streams(self, rank: int, link: Channel) -> bool:
        """Read the streams of a program that has started; return whether they came."""
        streams = STREAMS[:1] if self._job.merge_stderr else STREAMS
        if len(link.descriptors) < len(streams):
            # The kernel has dropped what this process had no number left for.
            link.tell(protocol.KILL)
            self._on_refused(rank, errno.EMFILE, "", "receiving stdout and stderr")
            return False
        for stream in streams:
            source = DescriptorSource(link.descriptors.pop(0))
            self._streams.open(source, rank, stream)
        return True

    def _on_refused(self, rank: int, number: int, tried: str, call: str) -> None:
        self._clean.add(rank)
        self._emit(Refused(rank=rank, errno=number, tried=tried, call=call))

    def _on_remains(self, pid: int, user: int, command: bytes) -> None:
        if pid not in self._remaining:
            self._remaining.add(pid)
            self._emit(codec.remains(self.name, pid, user, command))

    def _on_lost(self, rank: int) -> None:
        self._shims.pop(rank).close()
        self._exited.add(rank)
        if rank not in self._clean:
            self._lost.add(rank)
        if rank not in self._clean and not self._has_released:
            self._clean.add(rank)
            self._emit(ShimLost(rank=rank))
        elif self._has_released:
            self._emit(ShimLeft(rank=rank))

    # --- Processes of instances.

    def _on_alone(self, link: Channel, fields: list[Any]) -> bool:
        """Warn of an instance that imports mpi4py without an MPI."""
        link.close()
        # A program below an instance may be without the variables of an MPI for good.
        if not self._job.has_mpi and self._job.num_instances > 1:
            self._emit(AloneInMpi(rank=fields[0]))
        return True

    def _on_torch_groups(self, link: Channel, fields: list[Any]) -> bool:
        """Note that a process of an instance uses torch.distributed."""
        link.close()
        rank = fields[0]
        if rank in self.ranks and rank not in self._uses_torch:
            self._uses_torch.add(rank)
            self._emit(TorchGroupsMade(rank=rank))
        return rank in self.ranks

    def _on_debugger(self, link: Channel, fields: list[Any]) -> bool:
        """Take in that the debugger of an instance is ready, or shows a prompt."""
        rank, shows_prompt = fields
        if rank not in self.ranks:
            return False
        if shows_prompt == 1:
            self._prompts[link] = rank
            self._emit(PromptShown(rank=rank))
        else:
            self._emit(DebuggerReady(rank=rank))
        link.tell(protocol.DEBUGGER_KNOWN)
        return True

    def _on_prompt(self, link: Channel, messages: Messages | None) -> None:
        if messages is None and link in self._prompts:
            rank = self._prompts.pop(link)
            if rank not in self._prompts.values():
                self._emit(PromptOver(rank=rank))

    def _on_attach(self, link: Channel, fields: list[Any]) -> bool:
        """Attach a process of an instance to the instance's device."""
        index, num_ipus = fields
        if index not in self.ranks:
            return False
        self._attachments.ask(link, index, peer_of(link.sock)[0], num_ipus)
        return True

    def _on_elastic(self, link: Channel, fields: list[Any]) -> bool:
        """Take in that a process of an instance can form its groups anew."""
        rank = fields[0]
        if rank in self.ranks:
            self._members.add(link, rank)
        return rank in self.ranks

    def _on_finalizing(self, link: Channel, fields: list[Any]) -> bool:
        """Note what a process of an instance exits with."""
        rank, status = fields
        # Once the job is being stopped, no process ends by itself.
        if self._starts_instances:
            own = self._programs.get(peer_of(link.sock)[0])
            self._finalizing.note(
                link,
                rank=rank if own is None else own,
                status=status[0] << 8 if status else None,
                own=own is not None,
                now=time.monotonic(),
            )
        return True

    def _on_interpreter(self, link: Channel, messages: Messages | None) -> None:
        if messages is None:
            self._finalizing.forget(link)


def newcomers_spec(message: bytes) -> bytes:
    """Return the SPEC of an instance that is started in a running attempt."""
    [(_, fields)] = protocol.Decoder().feed(message)
    spec = protocol.Spec.read(fields)
    joins = b"%s=1" % env.ELASTIC_JOINS.encode()
    if joins not in spec.environment:
        spec.environment = [*spec.environment, joins]
    return spec.pack()


def _exited(
    rank: int,
    status: int,
    at_ns: int,
    user_us: int,
    system_us: int,
    peak_kib: int,
    by: bytes,
    lacks_faulthandler: int,
) -> Exited:
    return Exited(
        rank=rank,
        status=status,
        at_ns=min(at_ns, time.monotonic_ns()),
        user_s=user_us / 1e6,
        system_s=system_us / 1e6,
        peak_kib=peak_kib,
        by_itself=by in (protocol.BY_ITSELF, protocol.BY_CPU_LIMIT),
        at_cpu_limit=by == protocol.BY_CPU_LIMIT,
        lacks_faulthandler=lacks_faulthandler == 1,
    )
