"""The interface of a host to the supervisor's loop: start, events, tell its instances.

The loop knows no processes of instances and no sockets. LocalHost is the machine that
poprun runs on, and RemoteHost one at the end of a connection; the tests have a host
without processes. A host has nothing to do with mpirun.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from poprun.output.stdin import StdinFeeder
from poprun.output.stream_ends import OutputReader
from poprun.output.waiter import LoopPart
from poprun.wire.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """A time on a host's clock, read between two times on poprun's clock; in ns."""

    asked_ns: int
    answered_ns: int
    there_ns: int

    @property
    def offset_ns(self) -> int:
        """The difference from the host's clock to poprun's clock."""
        return (self.asked_ns + self.answered_ns) // 2 - self.there_ns

    @property
    def uncertainty_ns(self) -> int:
        """By how much the offset may be wrong."""
        return (self.answered_ns - self.asked_ns) // 2


class HostLink(LoopPart, Protocol):
    """One machine with instances of the job. No method waits.

    Times in events are on poprun's clock, because failures are ordered by them. Events
    of another host get the time when they arrive.
    """

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> Collection[int]:
        """The ranks of the instances on this host."""

    @property
    def is_clean(self) -> bool:
        """Whether all instances of this host have ended, and left no process."""

    @property
    def finished(self) -> bool:
        """Whether nothing of the job is left on the host, after `finish`."""

    @property
    def call_records(self) -> Iterable[tuple[str, bytes]]:
        """The names and pieces of the files of recorded calls there."""

    @property
    def clock_readings(self) -> Sequence[ClockReading]:
        """The readings of a clock other than poprun's, if the job is traced."""

    @property
    def results(self) -> Mapping[int, bytes]:
        """The results of poprun.launch's function that the instances cannot write."""

    def start(
        self, emit: Callable[[Event], None], streams: OutputReader, stdin: StdinFeeder
    ) -> None:
        """Get ready for the instances, which mpirun starts.

        Args:
            emit: Is called with each event, in the order in which they arrive.
            streams: Gets the stdout and stderr of the instances.
            stdin: Has the standard inputs of the instances.

        Raises:
            LaunchError: The host cannot run instances.
        """

    def take_in_losses(self) -> None:
        """Emit the losses of shims that are known by now.

        mpirun has ended, and the cause may be one of them.
        """

    def suspect_loss(self) -> None:
        """Find out earlier whether the host is lost: instances elsewhere take it so.

        Their word alone is no loss.
        """

    def tell(self, kind: int, *values: bytes | int) -> None:
        """Act on a decision, which is a message of wire/protocol.py.

        STOP_STARTING: Start no further instance.
        SIGNAL, KILL, RELEASE: For all shims of the host.
        INTERRUPT_INSTANCE, SHOW_STACKS_OF: For the shim of one instance. The answer to
            SHOW_STACKS_OF with the pid 0 is the event StacksAvailable.
        MEASURE: The answers are events UsageMeasured.
        NOTE_END: An instance of the job has ended; its instances may ask about it.
        NOTE_LEFT: The same for a member of a generation after the first.
        TELL_MEMBER: For the process of one instance that can re-form.
        START_AGAIN: The shim of an instance that has ended, with its streams, starts
            the program again. The answer is the event Started, Refused or ShimLost.
        KILL_INSTANCE: For the shim of one instance.
        """

    def finish(self) -> None:
        """Begin to end the rest of the job there, until `finished` is true."""

    def close(self) -> None:
        """Release what the link holds."""
