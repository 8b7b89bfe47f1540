"""What the supervisor's loop needs of a host: start, tell its instances, events, end.

The loop knows no processes and no sockets. LocalHost is the machine that poprun runs
on; the tests have a host without processes.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from poprun.job.events import Event
from poprun.stdio.readers import Streams
from poprun.stdio.stdin import StdinFeeder


class Interest(NamedTuple):
    """A descriptor that the loop waits for, on behalf of its owner."""

    descriptor: int
    # selectors.EVENT_READ, EVENT_WRITE or both.
    events: int
    # Is called with the events that came.
    call: Callable[[int], object]


class HostLink(Protocol):
    """One machine with instances of the job. No method waits.

    Times in events are on poprun's clock: a host with a clock of its own gives the
    time at which the event arrived, because failures are ordered by them.
    """

    # The stdout and stderr of its instances.
    streams: Streams

    @property
    def finished(self) -> bool:
        """Whether nothing of the job is left on the host, after `finish`."""

    def start(self, emit: Callable[[Event], None], stdin: StdinFeeder) -> None:
        """Start the instances.

        Args:
            emit: Is called with each event, in the order in which they arrive.
            stdin: Has the standard inputs of the instances.

        Raises:
            LaunchError: The host cannot run instances.
        """

    def interests(self, now: float) -> Iterator[Interest]:
        """Yield the descriptors to wait for; they are served in this order."""

    def deadline(self, now: float) -> float:
        """Return when `tick` is due even if nothing happens."""

    def tick(self, now: float) -> None:
        """Emit the events that are due by now."""

    def stop_starting(self) -> None:
        """Start no further instance: the job stops."""

    def signal_instances(self, number: int) -> None:
        """Send a signal to the process group of each instance."""

    def kill_instances(self) -> None:
        """Kill all processes of the instances."""

    def release_shims(self) -> None:
        """Let the shims end: all instances have ended."""

    def signal_mpirun(self, number: int) -> None:
        """Send a signal to mpirun, if it runs on this host."""

    def show_stacks(self, rank: int, pid: int) -> None:
        """Let a process show its Python stacks; with 0, ask which processes can.

        The answer is the event StacksAvailable.
        """

    def note_end(self, rank: int) -> None:
        """Tell the instances of this host that an instance of the job has ended."""

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminals of the instances another size."""

    def reap(self) -> None:
        """Take in that child processes of poprun may have changed their state."""

    def finish(self) -> None:
        """Begin to end what is left of the job, until `finished` is true."""

    def close(self) -> bytes:
        """Release what the host holds; return what mpirun has written."""
