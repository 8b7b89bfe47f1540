"""A host at the end of a connection to its agent.

It is to the supervisor what LocalHost is for the machine that poprun runs on. What it
sends is checked: a host reports only of its own instances, and sends no more than it
may. One that does not keep to that is lost.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, replace
from math import inf

from poprun.job.values import HostJob
from poprun.output.stdin import StdinFeeder
from poprun.output.stream_ends import STREAMS, OutputReader
from poprun.output.waiter import READ, WRITE, Interest
from poprun.reach.agent_connection import AgentConnection
from poprun.reach.silence import Silence
from poprun.trace.clocks import ClockReading
from poprun.vipu.launch.held_devices import Answer, HeldDevices
from poprun.vipu.leases import ProcessIdentity
from poprun.wire import event_codec, messages, protocol
from poprun.wire.events import (
    DaemonKilled,
    DebuggerReady,
    Event,
    Exited,
    FailedInFinalize,
    HostLost,
    NotUndone,
    PromptOver,
    PromptShown,
    Remains,
    StacksAvailable,
    UsageMeasured,
)

# The exit code of ssh where the connection fails.
SSH_FAILED = b"255"
# An agent that says nothing for so long after the job does not finish it.
FINISH_S = 10.0
# So many events that are of no instance are taken in of one host.
MOST_OTHER_EVENTS = 1000
MOST_DIGITS = 12
# The last millisecond that a calendar can show, in the year 9999.
MOST_TIME = 253_402_300_799_999
# So many nanoseconds no clock shows that counts from the start of a host.
MOST_NS = 10**19 - 1
# How often a host's clock is read at the start of a job that is traced, and at its end.
CLOCK_QUESTIONS = 4
# All other events of an instance come once.
_REPEATED = (StacksAvailable, UsageMeasured, DebuggerReady, PromptShown, PromptOver)
# What comes from another host must not fill the memory.
MOST_BYTES_OF_RECORDS = 1 << 28


class RemoteSource:
    """poprun's end of a stream that an instance on another host writes."""

    descriptor = None

    def __init__(self, host: "RemoteHost", rank: int, stream: int) -> None:
        self._host = host
        self._key = rank, stream
        # What has come, and when it was written there.
        self._pieces: deque[tuple[bytes, float]] = deque()
        self.written = 0.0
        # How many bytes have come and have not been read.
        self._num_unread = 0
        self._has_ended = False

    def receive(self, data: bytes, written: float) -> None:
        """Take in a piece of the stream; nothing at its end.

        Args:
            written: When it was written, in seconds since 1970.

        Raises:
            ValueError: The agent has sent more than it may.
        """
        if self._has_ended:
            return
        if self._num_unread + len(data) > self._host.most_unread:
            raise ValueError("more output than there is credit for")
        self._num_unread += len(data)
        self._has_ended = not data
        self._pieces.append((data, written))

    @property
    def has_data(self) -> bool:
        return bool(self._pieces)

    def read(self, most: int) -> bytes | None:
        if not self._pieces:
            return None
        data, self.written = self._pieces.popleft()
        self._num_unread -= len(data)
        if data:
            self._host.send(protocol.pack(messages.CREDIT, *self._key, len(data)))
        return data

    def resize(self, size: tuple[int, int]) -> None:
        # The agent resizes all streams of its host.
        self._host.resize(size)

    def close(self) -> None:
        self._host.forget(*self._key)


class RemoteSink:
    """poprun's end of the standard input of an instance on another host."""

    descriptor = None

    def __init__(self, host: "RemoteHost", rank: int) -> None:
        self._host = host
        self._rank = rank
        self._window = messages.INPUT_WINDOW
        self._is_broken = False

    def take(self, num_bytes: int | None) -> None:
        """Take in how much the instance has taken; None: it takes nothing more."""
        if num_bytes is None:
            self._is_broken = True
        else:
            self._window = min(self._window + num_bytes, messages.INPUT_WINDOW)

    def write(self, data: bytes) -> int:
        if self._is_broken:
            raise BrokenPipeError
        piece = data[: self._window]
        if piece:
            self._window -= len(piece)
            self._host.send(protocol.pack(messages.STDIN, self._rank, piece))
        return len(piece)

    def close(self) -> None:
        self._host.send(protocol.pack(messages.STDIN, self._rank, b""))


class RemoteHost:
    """The HostLink to a machine on which an agent runs.

    Args:
        job: The part of the attempt that runs there.
        specs: The SPEC messages of its instances, in rank order.
        on_command: Is called with a number, 1, 2 or 0 and what a command that mpirun
            runs there has written, or with its exit code.
        devices: Those of the job, None if it has none.
    """

    def __init__(
        self,
        connection: AgentConnection,
        job: HostJob,
        specs: Collection[bytes],
        on_command: Callable[[int, int, bytes], None],
        devices: "HeldDevices | None" = None,
    ) -> None:
        assert connection.hello is not None
        self.name = job.name
        self.ranks = job.ranks
        self.is_clean = self.finished = False
        self._connection = connection
        self._channel = connection.channel
        self._job = job
        self._specs = specs
        self._on_command = on_command
        self._sources: dict[tuple[int, int], RemoteSource] = {}
        self._sinks: dict[int, RemoteSink] = {}
        # The streams that have been opened, and which events of which instance have
        # been reported: each comes once.
        self._opened: set[tuple[int, int]] = set()
        self._reported: set[tuple[type[Event], int]] = set()
        self._num_other_events = 0
        self._size: tuple[int, int] | None = None
        # The numbers of the commands that run there.
        self._commands: set[int] = set()
        self._devices = devices
        # By instance: the process there that is attached or is to be.
        self._attached: dict[int, int] = {}
        self._is_lost = False
        self._silence = Silence(connection.loss_check(), time.monotonic())
        # How much of each stream may have come and not been read.
        self.most_unread = messages.OUTPUT_WINDOW
        # Pieces of the files in which the processes there have recorded their calls.
        self.call_records: list[tuple[str, bytes]] = []
        self._bytes_of_records = 0
        # What the function of poprun.launch has returned there.
        self.results: dict[int, bytes] = {}
        # Of its clock: what poprun's showed when it was read, and the difference, for
        # the quickest answer at the start and at the end.
        self._clock_readings: list[ClockReading] = []
        self._clock_questions = 0
        # Until when the agent has to be heard of once the job is over.
        self._finishes_by = inf

    def begin(self) -> None:
        """Ask the agent to get ready for the job."""
        job = {f.name: getattr(self._job, f.name) for f in fields(self._job)}
        header = messages.pack_fields(job)
        self.send(protocol.pack(messages.START_JOB, header, *self._specs))

    def listen(self) -> None:
        """Wait until the agent listens for shims.

        Raises:
            LaunchError: The host cannot run instances.
        """
        self._connection.answer()

    def start(
        self, emit: Callable[[Event], None], streams: OutputReader, stdin: StdinFeeder
    ) -> None:
        self._emit = emit
        self._streams = streams
        self._stdin = stdin
        self._read_clock()

    # --- What the loop waits for.

    def interests(self, now: float) -> Iterator[Interest]:
        if self._is_lost:
            return
        yield Interest(self._channel.fileno(), READ, self._on_agent)
        if self._channel.has_unsent:
            flush = self._channel.flush
            yield Interest(self._channel.write_fileno(), WRITE, flush)

    def deadline(self, now: float) -> float:
        if self._is_lost:
            return inf
        return min(self._silence.deadline(), self._finishes_by)

    def tick(self, now: float) -> None:
        if self._is_lost:
            return
        if self._silence.must_send(now):
            self.send(protocol.pack(messages.ALIVE))
        if self._silence.is_lost(now):
            self._lose("it does not answer or acknowledge what is sent")
        elif now >= self._finishes_by and not self.finished:
            self._lose("its agent does not confirm that nothing is left there")

    def take_in_losses(self) -> None:
        if not self._is_lost:
            self._on_agent()

    # --- What the supervisor decides.

    def stop_starting(self) -> None:
        self.send(protocol.pack(messages.STOP_STARTING))

    def signal_instances(self, number: int) -> None:
        self.send(protocol.pack(messages.SIGNAL, number))

    def interrupt_instance(self, rank: int) -> None:
        self.send(protocol.pack(messages.INTERRUPT, rank))

    def kill_instances(self) -> None:
        self.send(protocol.pack(messages.KILL))

    def release_shims(self) -> None:
        self.send(protocol.pack(messages.RELEASE))

    def show_stacks(self, rank: int, pid: int) -> None:
        self.send(protocol.pack(messages.SHOW_STACKS, rank, pid))

    def measure(self) -> None:
        self.send(protocol.pack(messages.MEASURE))

    def note_end(self, rank: int) -> None:
        self.send(protocol.pack(messages.NOTE_END, rank))

    def finish(self) -> None:
        self.finished = self._is_lost
        self._finishes_by = time.monotonic() + FINISH_S
        self._read_clock()
        self.most_unread += messages.LAST_OUTPUT
        self.send(protocol.pack(messages.FINISH))

    def close(self) -> None:
        """Do nothing: the connection is the preflight's."""

    # --- What streams and mpirun's remote shell send.

    def send(self, message: bytes) -> None:
        if not self._is_lost:
            self._silence.note_sent(time.monotonic())
            self._channel.send(message)

    def resize(self, size: tuple[int, int]) -> None:
        if size != self._size:
            self._size = size
            self.send(protocol.pack(messages.RESIZE, *size))

    def forget(self, rank: int, stream: int) -> None:
        self._sources.pop((rank, stream), None)

    def run(self, number: int, command: bytes) -> None:
        """Run a command there; what it writes goes to `on_command`."""
        self._commands.add(number)
        self.send(protocol.pack(messages.RUN, number, command))

    def end_run(self, number: int) -> None:
        self.send(protocol.pack(messages.END_RUN, number))

    # --- What the agent sends.

    def _on_agent(self) -> None:
        received = self._connection.receive()
        if received is None:
            self._lose_connection()
            return
        now = time.monotonic()
        self._silence.note_heard(now)
        if self._finishes_by < inf:
            self._finishes_by = inf if self.finished else now + FINISH_S
        try:
            for kind, fields in received:
                self._receive(kind, fields)
        except (ValueError, IndexError, KeyError):
            self._lose("its agent has sent an invalid message")

    def _receive(self, kind: int, fields: list[bytes]) -> None:
        if kind == messages.EVENT:
            self._on_event(event_codec.unpack(messages.unpack(fields[0])))
        elif kind == messages.OUTPUT:
            rank, stream = _number(fields[0]), _number(fields[1])
            if source := self._sources.get((rank, stream)):
                source.receive(fields[2], _number(fields[3], MOST_TIME) / 1000)
        elif kind == messages.STREAM_OPENED:
            self._on_stream_opened(_number(fields[0]), _number(fields[1]))
        elif kind == messages.STDIN_TAKEN:
            self._on_stdin_taken(_number(fields[0]), fields[1])
        elif kind == messages.CLEAN:
            self.is_clean = fields[0] == b"1"
        elif kind == messages.RUN_OUTPUT:
            number, stream = _number(fields[0]), _number(fields[1])
            if number not in self._commands or stream not in (1, 2):
                raise ValueError("output of a command that does not run there")
            self._on_command(number, stream, fields[2])
        elif kind == messages.RUN_ENDED:
            number, code = _number(fields[0]), _number(fields[1])
            if number not in self._commands:
                raise ValueError("the end of a command that does not run there")
            self._end_command(number, b"%d" % (code & 255))
        elif kind == messages.ATTACH:
            self._on_attach(fields)
        elif kind == messages.DETACH:
            self._detach(_number(fields[0]), _number(fields[1]))
        elif kind == messages.FINISHED:
            kills, limit, host = (_number(field) if field else None for field in fields)
            self._connection.memory = kills, limit, host
            self.finished = True
            self._detach_all()
        elif kind == messages.CLOCK:
            self._on_clock(*(_number(field, MOST_NS) for field in fields[:2]))
        elif kind == messages.CALL_RECORDS and self._job.is_traced:
            self._bytes_of_records += len(fields[1])
            if self._bytes_of_records <= MOST_BYTES_OF_RECORDS:
                self.call_records.append((os.fsdecode(fields[0]), fields[1]))
        elif kind == messages.RESULT and self._job.call:
            self._on_result(_number(fields[0]), fields[1])
        elif kind == messages.SUPERVISOR_LOST:
            self._lose(messages.why_supervisor_lost(fields))

    def _on_result(self, rank: int, piece: bytes) -> None:
        if rank not in self.ranks:
            raise ValueError(f"a result of instance {rank}")
        self._bytes_of_records += len(piece)
        if self._bytes_of_records <= MOST_BYTES_OF_RECORDS:
            self.results[rank] = self.results.get(rank, b"") + piece

    def _read_clock(self) -> None:
        """Ask several times for what the clock there shows, if that is to be known."""
        if self._job.is_traced:
            self._clock_questions += CLOCK_QUESTIONS
            self._ask_for_clock()

    def _ask_for_clock(self) -> None:
        self.send(protocol.pack(messages.READ_CLOCK, time.monotonic_ns()))

    def _on_clock(self, asked_ns: int, there_ns: int) -> None:
        if not self._clock_questions:
            raise ValueError("an answer to no question")
        now = time.monotonic_ns()
        self._clock_readings.append(
            ClockReading(asked_ns=asked_ns, answered_ns=now, there_ns=there_ns)
        )
        self._clock_questions -= 1
        if self._clock_questions % CLOCK_QUESTIONS:
            self._ask_for_clock()

    @property
    def clock_readings(self) -> Sequence[ClockReading]:
        """What the clock there has shown, from the start of the job to its end."""
        return self._clock_readings

    def _end_command(self, number: int, exit_code: bytes) -> None:
        self._commands.discard(number)
        self._on_command(number, 0, exit_code)

    def _on_event(self, event: Event) -> None:
        rank: int | None = getattr(event, "rank", None)
        if rank is None:
            self._num_other_events += 1
            if self._num_other_events > MOST_OTHER_EVENTS:
                return
        elif rank not in self.ranks:
            raise ValueError(f"an event of instance {rank}")
        elif not isinstance(event, _REPEATED):
            key = type(event), rank
            if key in self._reported:
                return
            self._reported.add(key)
        # Its host has a clock of its own, and the name that the user gave it.
        if isinstance(event, Exited | FailedInFinalize):
            event = replace(event, at_ns=time.monotonic_ns())
        if isinstance(event, DaemonKilled | NotUndone | Remains):
            event = replace(event, host=self.name)
        self._emit(event)

    def _on_stream_opened(self, rank: int, stream: int) -> None:
        key = rank, stream
        if rank not in self.ranks or key in self._opened:
            raise ValueError(f"a stream of instance {rank}")
        name = STREAMS[stream]
        self._opened.add(key)
        source = self._sources[key] = RemoteSource(self, rank, stream)
        self._streams.open(source, rank, name)

    def _on_stdin_taken(self, rank: int, taken: bytes) -> None:
        if rank not in self._job.stdin_ranks:
            raise ValueError(f"the standard input of instance {rank}")
        if rank not in self._sinks:
            sink = self._sinks[rank] = RemoteSink(self, rank)
            self._stdin.add(sink)
        self._sinks[rank].take(_number(taken) if taken else None)

    def _on_attach(self, fields: list[bytes]) -> None:
        """Attach a process there to the device of its instance.

        Raises:
            ValueError: The instance or the process can be none of that host.
        """
        rank, pid, start_time = (_number(fields[i]) for i in range(3))
        boot_id, pid_namespace = fields[3].decode("ascii"), fields[4].decode("ascii")
        if self._devices is None or rank not in self.ranks or rank in self._attached:
            raise ValueError(f"a process of instance {rank}")
        process = ProcessIdentity(pid, start_time, boot_id, pid_namespace)
        self._attached[rank] = pid
        hello = self._connection.hello
        assert hello is not None
        self._devices.attach_on(hello.hostname, rank, process, self._on_attached)

    def _on_attached(self, answer: "Answer") -> None:
        rank, pid, refusal = answer
        if refusal:
            self._attached.pop(rank, None)
        self.send(protocol.pack(messages.DEVICE, rank, pid, refusal.encode()))

    def _detach(self, rank: int, pid: int) -> None:
        if self._devices is not None and self._attached.get(rank) == pid:
            del self._attached[rank]
            self._devices.detach(rank, pid)

    def _detach_all(self) -> None:
        for rank, pid in list(self._attached.items()):
            self._detach(rank, pid)

    def _lose_connection(self) -> None:
        text = self._connection.stderr_text.rstrip(".")
        self._lose(f"the connection to it has ended{': ' if text else ''}{text}")

    def _lose(self, why: str) -> None:
        if self._is_lost:
            return
        was_finished, self.finished, self._is_lost = self.finished, True, True
        if self._connection.memory is None:
            # It is not to be asked any more, which would take until a timeout.
            self._connection.memory = 0, None, None
        for source in self._sources.values():
            source.receive(b"", 0.0)
        for sink in self._sinks.values():
            sink.take(None)
        for number in list(self._commands):
            self._end_command(number, SSH_FAILED)
        # Once nothing is left there, its connection may end.
        if not was_finished:
            if self._devices is not None:
                self._devices.note_lost_host()
            self._emit(HostLost(host=self.name, ranks=tuple(self.ranks), why=why))


def _number(field: bytes, most: int = 10**MOST_DIGITS - 1) -> int:
    """Return the number in a field.

    Raises:
        ValueError: There is none, or it is too large.
    """
    is_long = len(field) > len(str(most))
    if is_long or not field.isdigit() or int(field) > most:
        raise ValueError(f"{field[:MOST_DIGITS]!r} is not a number")
    return int(field)
