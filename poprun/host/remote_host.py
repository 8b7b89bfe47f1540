"""A host at the end of a connection to its agent.

Calls of the supervisor become messages, and messages become events and streams. A host
may report only its own instances, and may send only so much; otherwise it is lost.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from math import inf
from types import MappingProxyType
from typing import Any

from poprun.host.commands import RemoteCommands
from poprun.host.forwarded_streams import (
    LAST_OUTPUT,
    OUTPUT_WINDOW,
    RemoteSink,
    RemoteSource,
)
from poprun.host.host_link import ClockReading
from poprun.job.values import HostJob
from poprun.output.stdin import StdinFeeder
from poprun.output.stream_ends import STREAMS, OutputReader
from poprun.output.waiter import READ, WRITE, Interest, serve
from poprun.reach.connections.agent_connection import (
    INVALID_MESSAGE,
    START_S,
    AgentConnection,
)
from poprun.reach.connections.silence import Silence
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.vipu.launch.held_devices import Answer, HeldDevices
from poprun.vipu.leases import ProcessIdentity
from poprun.wire import codec, protocol
from poprun.wire.events import (
    CanReform,
    Clean,
    Connected,
    DaemonKilled,
    DebuggerReady,
    Event,
    Exited,
    FailedInFinalize,
    HostLost,
    NotUndone,
    PromptOver,
    PromptShown,
    ReformAsked,
    ReformEnded,
    Remains,
    ShimLost,
    StacksAvailable,
    UsageMeasured,
)
from poprun.words import printable

# An agent that says nothing for so long after the job does not finish it.
FINISH_S = 10.0
# A host may send so many events that belong to no instance.
MOST_OTHER_EVENTS = 1000
# How often a host's clock is read at the start of a job that is traced, and at its end.
CLOCK_QUESTIONS = 4
# All other events of an instance come once.
_REPEATED = (
    *(StacksAvailable, UsageMeasured, DebuggerReady, PromptShown, PromptOver),
    *(CanReform, ReformAsked, ReformEnded),
)
# Records of another host must not fill the memory.
MOST_BYTES_OF_RECORDS = 1 << 28


class RemoteHost:
    """The HostLink to a machine on which an agent runs.

    Args:
        job: The part of the attempt that runs there.
        specs: The SPEC messages of its instances, in rank order.
        devices: The IPUs of the job, None if it has none.
        shims: The commands that start the shims of its instances without mpirun.
        joins: Whether to start them once the agent is ready.
    """

    def __init__(
        self,
        connection: AgentConnection,
        job: HostJob,
        specs: Collection[bytes],
        devices: HeldDevices | None = None,
        shims: Mapping[int, bytes] = MappingProxyType({}),
        *,
        joins: bool = False,
    ) -> None:
        self.name = job.name
        self.ranks = job.ranks
        self.is_clean = self.finished = False
        self.connection = connection
        self._channel = connection.channel
        self._job = job
        self._specs = specs
        self._sources: dict[tuple[int, int], RemoteSource] = {}
        self._sinks: dict[int, RemoteSink] = {}
        # How many bytes of each stream may have come and not been read.
        self._most_unread = OUTPUT_WINDOW
        # The kind and the instance of each reported event: each comes once.
        self._reported: set[tuple[type[Event], int]] = set()
        self._num_other_events = 0
        self.commands = RemoteCommands(self.tell, shims)
        # The instances whose shims are started once the agent is ready.
        self._to_start = set(shims) if joins else set[int]()
        self._devices = devices
        self._hostname = connection.hello.hostname
        # By instance: the process there that is attached or is to be.
        self._attached: dict[int, int] = {}
        self._is_lost = False
        self._silence = Silence(connection.loss_check(), time.monotonic())
        # Pieces of the files in which the processes there have recorded their calls.
        self.call_records: list[tuple[str, bytes]] = []
        self._bytes_of_records = 0
        # Packed results of the function of poprun.launch there, by rank.
        self.results: dict[int, bytes] = {}
        # Readings of the clock there, from the start of the job to its end.
        self.clock_readings: list[ClockReading] = []
        self._clock_questions = 0
        # Until when the agent has to be heard of once the job is over.
        self._finishes_by = inf
        # Until when it has to be ready for the job on a host that joins.
        self._ready_by = inf
        self._receivers = self._receivers_by_kind()

    def _receivers_by_kind(self) -> Mapping[int, Callable[..., None]]:
        """Return the methods for the messages of the other end."""
        return {
            protocol.JOB_STARTED: self._start_shims,
            protocol.REFUSAL: self._on_refusal,
            protocol.EVENT: self._on_event,
            protocol.STREAM_OPENED: self._on_stream_opened,
            protocol.OUTPUT: self._on_output,
            protocol.INPUT_TAKEN: self._on_input_taken,
            protocol.HOST_CLEAN: self._on_clean,
            protocol.COMMAND_OUTPUT: self.commands.receive_output,
            protocol.COMMAND_ENDED: self._on_command_ended,
            protocol.ATTACH_PROCESS: self._on_attach,
            protocol.DETACH_PROCESS: self._detach,
            protocol.HOST_FINISHED: self._on_finished,
            protocol.CLOCK: self._on_clock,
            protocol.CALL_RECORDS: self._on_call_records,
            protocol.RESULT: self._on_result,
            protocol.SUPERVISOR_LOST: self._on_supervisor_lost,
        }

    def begin(self) -> None:
        """Ask the agent to get ready for the job."""
        self.tell(protocol.START_JOB, codec.json_field(asdict(self._job)), *self._specs)

    def listen(self) -> None:
        """Wait until the agent listens for shims.

        Raises:
            LaunchError: The host cannot run instances.
        """
        self.connection.answer()

    def start(
        self, emit: Callable[[Event], None], streams: OutputReader, stdin: StdinFeeder
    ) -> None:
        self._emit = emit
        self._streams = streams
        self._stdin = stdin
        if self._to_start:
            self._ready_by = time.monotonic() + START_S
        self._read_clock()

    # --- For the supervisor's loop.

    def interests(self, now: float) -> Iterator[Interest]:
        if self._is_lost:
            return
        yield Interest(self._channel.fileno(), READ, self._on_agent)
        if self._channel.has_unsent:
            yield Interest(self._channel.write_fileno(), WRITE, self._channel.flush)

    def deadline(self, now: float) -> float:
        if self._is_lost:
            return inf
        return min(self._silence.deadline(), self._finishes_by, self._ready_by)

    def tick(self, now: float) -> None:
        if self._is_lost:
            return
        if self._silence.must_send(now):
            self.tell(protocol.ALIVE)
        if self._silence.is_lost(now):
            self._lose("it does not answer or acknowledge what is sent")
        elif now >= self._finishes_by and not self.finished:
            self._lose("its agent does not confirm that nothing is left there")
        elif now >= self._ready_by:
            self._lose(f"its agent is not ready for the job within {START_S:.0f} s")

    def take_in_losses(self) -> None:
        # If nothing has come, its silence goes on.
        if not self._is_lost:
            serve([Interest(self._channel.fileno(), READ, self._on_agent)], 0.0)

    def suspect_loss(self) -> None:
        self._silence.suspect()

    # --- The supervisor's decisions.

    def tell(self, kind: int, *fields: bytes | int) -> None:
        starts_shim = False
        if kind == protocol.START_AGAIN:
            starts_shim = (ShimLost, fields[0]) in self._reported
            self._forget_end(fields[0])
        elif kind in (protocol.STOP_STARTING, protocol.KILL_INSTANCE):
            self._cancel_shims(fields or self.ranks)
        if not self._is_lost:
            self._silence.note_sent(time.monotonic())
            self._channel.tell(kind, *fields)
        if starts_shim:
            self.commands.start_shim(int(fields[0]))

    def _forget_end(self, rank: bytes | int) -> None:
        """Let an instance that is started again report its life once more."""
        self._reported = {key for key in self._reported if key[1] != rank}
        self._sources = {k: s for k, s in self._sources.items() if k[0] != rank}

    def _start_shims(self) -> None:
        """Start the shims of a host that joins: its agent is ready."""
        self._ready_by = inf
        while self._to_start:
            self.commands.start_shim(self._to_start.pop())

    def _on_refusal(self, *fields: bytes) -> None:
        if len(fields) < 2:
            raise ValueError("a refusal without a sentence")
        sentence = printable(fields[1].decode(errors="replace"))
        self._lose(f"it refuses the job: {sentence.rstrip('.')}")

    def _cancel_shims(self, ranks: Iterable[bytes | int]) -> None:
        """Do not start the shims of instances, or end those that are not there yet."""
        for rank in map(int, ranks):
            # poprun may tell this host the same once more because of the event.
            if rank in self._to_start:
                self._to_start.discard(rank)
                self._emit(Clean(rank=rank, left_behind=0))
            if (Connected, rank) not in self._reported:
                self.commands.end_shim(rank)

    def finish(self) -> None:
        self.finished = self._is_lost
        self._finishes_by = time.monotonic() + FINISH_S
        self._read_clock()
        self._most_unread += LAST_OUTPUT
        self.tell(protocol.FINISH_HOST)

    def close(self) -> None:
        """Do nothing: the connection is the preflight's."""

    # --- Messages that become events and streams.

    def _on_agent(self) -> None:
        received = self.connection.receive()
        if received is None:
            text = self.connection.stderr_text.rstrip(".")
            self.lose_closed(
                f"the connection to it has ended{': ' if text else ''}{text}"
            )
            return
        now = time.monotonic()
        self._silence.note_heard(now)
        if self._finishes_by < inf:
            self._finishes_by = inf if self.finished else now + FINISH_S
        try:
            for kind, fields in received:
                if self._is_lost:
                    return  # by an earlier one of these messages
                values = codec.read(kind, fields)
                if kind in self._receivers:
                    self._receivers[kind](*values)
        except ValueError:
            self._lose(INVALID_MESSAGE)

    def _on_event(self, value: Any) -> None:
        event = codec.unpack_event(value)
        rank: int | None = getattr(event, "rank", None)
        if rank is None:
            self._num_other_events += 1
            if self._num_other_events > MOST_OTHER_EVENTS:
                return
        else:
            self._check_rank(rank)
            if not isinstance(event, _REPEATED):
                key = type(event), rank
                if key in self._reported:
                    return
                self._reported.add(key)
        # Replace its clock's time and its own name: the user has given it another.
        if isinstance(event, Exited | FailedInFinalize):
            event = replace(event, at_ns=time.monotonic_ns())
        if isinstance(event, DaemonKilled | NotUndone | Remains):
            event = replace(event, host=self.name)
        self._emit(event)

    def _on_stream_opened(self, rank: int, stream: int) -> None:
        key = rank, stream
        self._check_rank(rank)
        if key in self._sources or stream >= len(STREAMS):
            raise ValueError(f"stream {stream} of instance {rank}")
        source = self._sources[key] = RemoteSource(self.tell, rank, stream)
        self._streams.open(source, rank, STREAMS[stream])

    def _on_output(self, rank: int, stream: int, data: bytes, written_ms: int) -> None:
        if source := self._sources.get((rank, stream)):
            source.receive(data, written_ms / 1000, self._most_unread)

    def _on_input_taken(self, rank: int, taken: int | None) -> None:
        if rank not in self._job.stdin_ranks:
            raise ValueError(f"the standard input of instance {rank}")
        if rank not in self._sinks:
            sink = self._sinks[rank] = RemoteSink(self.tell, rank)
            self._stdin.add(sink)
        self._sinks[rank].take(taken)

    def _on_clean(self, is_clean: int) -> None:
        self.is_clean = is_clean == 1

    def _on_command_ended(self, number: int, code: int) -> None:
        rank = self.commands.note_end(number, code)
        has_ended = {(Connected, rank), (Clean, rank)} & self._reported
        if rank is not None and not has_ended and not self._is_lost:
            self._reported.add((ShimLost, rank))
            self._emit(ShimLost(rank=rank))

    def _on_attach(
        self, rank: int, pid: int, start_time: int, boot_id: bytes, namespace: bytes
    ) -> None:
        """Attach a process there to the device of its instance."""
        self._check_rank(rank)
        if self._devices is None or rank in self._attached:
            raise ValueError(f"a process of instance {rank}")
        process = ProcessIdentity(
            pid=pid,
            start_time=start_time,
            boot_id=boot_id.decode("ascii"),
            pid_namespace=namespace.decode("ascii"),
        )
        self._attached[rank] = pid
        self._devices.attach_on(self._hostname, rank, process, self._on_attached)

    def _on_attached(self, answer: Answer) -> None:
        if answer.refusal:
            self._attached.pop(answer.instance, None)
        fields = answer.instance, answer.pid, answer.refusal.encode()
        self.tell(protocol.DEVICE_ANSWER, *fields)

    def _detach(self, rank: int, pid: int) -> None:
        if self._devices is not None and self._attached.get(rank) == pid:
            del self._attached[rank]
            self._devices.detach(rank, pid)

    def _on_finished(
        self, kills: int | None, limit: int | None, host_kills: int | None
    ) -> None:
        self.connection.memory = MemoryCounters(
            kills=kills or 0, limit=limit, host_kills=host_kills
        )
        self.finished = True
        for rank, pid in list(self._attached.items()):
            self._detach(rank, pid)

    def _on_call_records(self, name: str, piece: bytes) -> None:
        self._bytes_of_records += len(piece)
        if self._job.is_traced and self._bytes_of_records <= MOST_BYTES_OF_RECORDS:
            self.call_records.append((name, piece))

    def _on_result(self, rank: int, piece: bytes) -> None:
        self._check_rank(rank)
        self._bytes_of_records += len(piece)
        if self._job.call and self._bytes_of_records <= MOST_BYTES_OF_RECORDS:
            self.results[rank] = self.results.get(rank, b"") + piece

    def _on_supervisor_lost(self, name: bytes) -> None:
        self.lose_closed(codec.why_supervisor_lost(name))

    def _check_rank(self, rank: int) -> None:
        """Raise ValueError if an instance is not on that host."""
        if rank not in self.ranks:
            raise ValueError(f"instance {rank} of another host")

    # --- The clock there.

    def _read_clock(self) -> None:
        """Read the clock there several times, if the job is traced."""
        if self._job.is_traced:
            self._clock_questions += CLOCK_QUESTIONS
            self.tell(protocol.READ_CLOCK, time.monotonic_ns())

    def _on_clock(self, asked_ns: int, there_ns: int) -> None:
        if not self._clock_questions:
            raise ValueError("an answer to no question")
        now = time.monotonic_ns()
        self.clock_readings.append(
            ClockReading(asked_ns=asked_ns, answered_ns=now, there_ns=there_ns)
        )
        self._clock_questions -= 1
        if self._clock_questions % CLOCK_QUESTIONS:
            self.tell(protocol.READ_CLOCK, time.monotonic_ns())

    # --- The loss of the host.

    def lose_closed(self, why: str) -> None:
        """Take in that the host is lost, and close the connection if it is open.

        The agent or its guard ends the instances then.
        """
        self._lose(why, may_run=not self.connection.is_direct)

    def _lose(self, why: str, *, may_run: bool = True) -> None:
        if self._is_lost:
            return
        was_finished, self.finished, self._is_lost = self.finished, True, True
        # Only HOST_FINISHED says that nothing is left there.
        self.is_clean = self.is_clean and was_finished
        if self.connection.memory is None:
            # It is not to be asked any more, which would take until a timeout.
            self.connection.memory = MemoryCounters()
        # If it can be reached again, its agent ends the old instances.
        self.connection.hang_up()
        for source in self._sources.values():
            source.receive(b"", 0.0, self._most_unread)
        for sink in self._sinks.values():
            sink.take(None)
        self.commands.note_loss()
        # Once nothing is left there, its connection may end.
        if not was_finished:
            if self._devices is not None and may_run:
                self._devices.note_lost_host()
            ranks = tuple(self.ranks)
            self._emit(HostLost(host=self.name, ranks=ranks, why=why, may_run=may_run))
