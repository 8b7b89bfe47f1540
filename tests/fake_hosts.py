"""A host and an mpirun without processes, sockets and clocks, which tests play.

FakeHost is what another host of a job looks like to the supervisor: one file that
implements HostLink, and an entry in the list of the job's hosts.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from poprun.host.host_link import ClockReading, HostLink
from poprun.output.stdin import StdinFeeder
from poprun.output.stream_ends import OutputReader
from poprun.output.waiter import READ, Interest
from poprun.wire import protocol
from poprun.wire.events import (
    Clean,
    Event,
    Exited,
    MpirunExited,
    StacksAvailable,
    Started,
    UsageMeasured,
)

# How long the loop of one test may run.
LIMIT_S = 200.0


def exited(rank: int, status: int = 0, *, by_itself: bool = True) -> Exited:
    return Exited(
        rank=rank,
        status=status,
        at_ns=time.monotonic_ns(),
        user_s=0.0,
        system_s=0.0,
        peak_kib=0,
        by_itself=by_itself,
    )


class FakeHost:
    """Records what it is told, and reports what the test plays.

    Args:
        obeys: The signals at which its instances end at once.
        ends_mpirun: mpirun ends when the shims of this host are released.
    """

    def __init__(
        self,
        name: str,
        ranks: Collection[int],
        obeys: Sequence[int] = (),
        *,
        ends_mpirun: bool = True,
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.is_clean = self.finished = True
        self.call_records: list[tuple[str, bytes]] = []
        self.clock_readings: list[ClockReading] = []
        self.results: dict[int, bytes] = {}
        # What it reports between `finish` and its end.
        self.last_events: Sequence[Event] = ()
        self.calls: list[tuple[object, ...]] = []
        self.ticks = 0
        self.alive: set[int] = set()
        self._obeys = obeys
        self._ends_mpirun = ends_mpirun
        self._ends_by = time.monotonic() + LIMIT_S
        # One byte in this pipe plays the next batch of events.
        self._reader, self._writer = os.pipe()
        self._batches: list[list[Event]] = []

    # --- What the test plays.

    def play(self, *events: Event) -> None:
        """Let the loop find these events together, behind one readable descriptor."""
        self._batches.append(list(events))
        os.write(self._writer, b".")

    def end(self, rank: int, status: int, *, by_itself: bool) -> list[Event]:
        """Return the events of an instance's end."""
        return [
            exited(rank, status, by_itself=by_itself),
            Clean(rank=rank, left_behind=0),
        ]

    # --- The HostLink.

    def start(
        self, emit: Callable[[Event], None], streams: OutputReader, stdin: StdinFeeder
    ) -> None:
        self.emit = emit
        self.streams = streams
        self.stdin = stdin
        self.calls.append(("start",))

    def interests(self, now: float) -> Iterator[Interest]:
        yield Interest(self._reader, READ, self._on_batch)

    def _on_batch(self) -> None:
        os.read(self._reader, 1)
        for event in self._batches.pop(0):
            if isinstance(event, Started):
                self.alive.add(event.rank)
            elif isinstance(event, Exited):
                self.alive.discard(event.rank)
            self.emit(event)
        self.finished = not self._batches

    def deadline(self, now: float) -> float:
        return self._ends_by

    def tick(self, now: float) -> None:
        assert now < self._ends_by, f"the loop has not ended within {LIMIT_S} s"
        self.ticks += 1

    def take_in_losses(self) -> None:
        pass

    def suspect_loss(self) -> None:
        self.calls.append(("suspect",))

    def tell(self, kind: int, *values: int) -> None:
        match kind, *values:
            case (protocol.STOP_STARTING,):
                self._call_once("stop_starting")
            case protocol.INTERRUPT_INSTANCE, rank:
                self.calls.append(("interrupt", rank))
            case protocol.SIGNAL, number:
                self.calls.append(("signal", number))
                if number in self._obeys:
                    self._end_all(number)
            case (protocol.KILL,):
                self.calls.append(("kill",))
                self._end_all(signal.SIGKILL)
            case (protocol.RELEASE,):
                if self._call_once("release") and self._ends_mpirun:
                    self.play(MpirunExited(status=0))
            case protocol.SHOW_STACKS_OF, rank, pid:
                self.calls.append(("show_stacks", rank, pid))
                if not pid:
                    self.play(StacksAvailable(rank=rank, pids=()))
            case (protocol.MEASURE,):
                self._measure()
            case protocol.NOTE_END, rank:
                self.calls.append(("note_end", rank))
            case protocol.START_AGAIN, rank:
                self.calls.append(("start_again", rank))

    def _end_all(self, status: int) -> None:
        for rank in sorted(self.alive):
            self.play(*self.end(rank, status, by_itself=False))
        self.alive.clear()

    def _measure(self) -> None:
        self.calls.append(("measure",))
        for rank in sorted(self.alive):
            self.play(
                UsageMeasured(rank=rank, cpu_s=1.5, memory_kib=2048, num_processes=3)
            )

    def finish(self) -> None:
        self._call_once("finish_host")
        if self.last_events:
            self.finished = False
            self.play(*self.last_events)

    def close(self) -> None:
        self.calls.append(("close",))
        os.close(self._reader)
        os.close(self._writer)

    def _call_once(self, name: str) -> bool:
        """Record a call that may come again and then means nothing."""
        is_first = (name,) not in self.calls
        if is_first:
            self.calls.append((name,))
        return is_first


# The type checker compares them.
_: Callable[[str, Collection[int]], HostLink] = FakeHost


class FakeMpirun:
    """A MpirunProcess that starts nothing; it records into the calls of a host."""

    def __init__(self, calls: list[tuple[object, ...]]) -> None:
        self.calls = calls
        self.finished = False

    def report_to(self, emit: Callable[[Event], None]) -> None:
        self.calls.append(("report_to",))

    def interests(self, now: float) -> Iterator[Interest]:
        yield from ()

    def deadline(self, now: float) -> float:
        return float("inf")

    def tick(self, now: float) -> None:
        pass

    def stop_starting(self) -> None:
        pass

    def send_signal(self, number: int) -> None:
        self.calls.append(("signal_mpirun", number))

    def reap(self) -> None:
        pass

    def finish(self, *, is_clean: bool) -> None:
        self.calls.append(("finish", is_clean))
        self.finished = True

    output = b"what mpirun wrote"

    def close(self) -> bytes:
        self.calls.append(("close_mpirun",))
        return self.output
