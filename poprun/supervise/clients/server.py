"""The requests of popctl to one job, and how they are carried out.

popctl connects to a socket that is named after the job. Only processes of poprun's own
user are clients, root's are not. They are bounded in number and in what waits for them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from signal import SIGINT
from typing import Any

from poprun.errors import LaunchError
from poprun.host.control_socket import ControlSocket, Handler
from poprun.output import waiter
from poprun.output.output_tap import OutputTap
from poprun.output.waiter import READ, Interest
from poprun.supervise.clients.job_view import JobView
from poprun.supervise.job_state import Phase
from poprun.supervise.stacks import Stacks
from poprun.wire import protocol
from poprun.wire.channel import Channel, peer_of
from poprun.wire.events import Event, Interrupted, StacksAvailable
from poprun.words import format_ranges

MOST_CLIENTS = 16
# So much may wait for a client, besides what the socket holds.
MOST_WAITING = 1 << 20
# How long a client may take to read the last that it is sent.
LAST_READ_S = 10.0
# The limit of connections without a request.
MOST_UNKNOWN = 16
# The shortest time between two looks at what the instances use.
LEAST_INTERVAL_S = 0.5
# How long the answer of other hosts takes at most before a client gets one without it.
REMOTE_USAGE_S = 0.3
ATTEMPT_OVER = "The attempt is over; the job is being started again."
NO_STACKS = (
    "The job is being started, stopped or restarted: it has no Python stacks now."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """The controls of a job for its clients; the defaults are for no attempt."""

    emit: Callable[[Event], None]
    # Returns None while no attempt runs.
    phase: Callable[[], Phase | None] = lambda: None
    # Asks the hosts what their instances use; they answer by UsageMeasured.
    measure: Callable[[], None] = lambda: None
    # Asks an instance for its Python stacks, as Stacks does.
    ask_for_stacks: Callable[[int, int], None] = lambda rank, pid: None
    tail: Callable[[int], bytes] = lambda rank: b""
    say: Callable[[str], None] = lambda sentence: None
    error_stream: str = ""


class ClientConnection:
    """The messages to one client, of which a bounded number of bytes waits.

    A client that does not read must not slow the job down or fill poprun's memory.
    """

    def __init__(self, link: Channel) -> None:
        self.link = link
        self.pid = peer_of(link.sock)[0]
        # How many bytes of output were dropped since the last note of that.
        self._num_dropped = 0
        # When it is closed at the latest, once it is sent nothing more.
        self.closes_by = inf
        # When the instances are measured for it, and when it is shown the job; how many
        # seconds later again, 0 for never.
        self.measures_at = self.shows_at = inf
        self.interval = 0.0
        # The instance whose output it gets.
        self.watched: int | None = None

    def deadline(self) -> float:
        """Return when something is due for it."""
        shows_at = inf if self.link.has_unsent else self.shows_at
        return min(self.measures_at, shows_at, self.closes_by)

    def send(self, kind: int, *fields: bytes | int) -> None:
        """Send one of the few messages that are no output of an instance."""
        if self.closes_by == inf:
            self.link.tell(kind, *fields)

    def write(self, stream: str, data: bytes) -> None:
        """Send what an instance has written, unless too much waits already."""
        if self.link.num_unsent + len(data) > MOST_WAITING:
            self._num_dropped += len(data)
            return
        if self._num_dropped:
            # Its place is before what comes next.
            dropped, self._num_dropped = self._num_dropped, 0
            self.send(protocol.OUTPUT_DROPPED, dropped)
        self.send(protocol.INSTANCE_OUTPUT, stream.encode(), data)

    def finish(self, sentence: str = "") -> None:
        """Say that nothing more comes, and why; close when that has been read."""
        if self._num_dropped:
            self.send(protocol.OUTPUT_DROPPED, self._num_dropped)
        self.send(protocol.REQUEST_DONE, sentence.encode())
        self.close_after_reading()

    def refuse(self, sentence: str) -> None:
        """Say why a request is not carried out; close when that has been read."""
        self.send(protocol.REQUEST_REFUSED, sentence.encode())
        self.close_after_reading()

    def close_after_reading(self) -> None:
        self.closes_by = min(self.closes_by, time.monotonic() + LAST_READ_S)

    def tick(self, now: float) -> None:
        """Close the connection when its time has come."""
        if self.closes_by < inf and (not self.link.has_unsent or now >= self.closes_by):
            self.link.close()


class _Dump(Stacks):
    """One round of Python stacks for one client."""

    def __init__(
        self, client: ClientConnection, ranks: Sequence[int], controls: Controls
    ) -> None:
        super().__init__(self._ask_for_stacks, controls.tail, self._head)
        self.client, self._ranks, self._controls = client, ranks, controls
        # The instance whose stacks come now, and all instances with some output.
        self._shown_now: int | None = None
        self._shown: set[int] = set()
        self.start(ranks, time.monotonic())

    def describe_silent(self) -> str:
        """Return a sentence about the instances without stacks, "" for none."""
        silent = [rank for rank in self._ranks if rank not in self._shown]
        if not silent:
            return ""
        noun, verb = ("Instance", "has") if len(silent) == 1 else ("Instances", "have")
        return (
            f"{noun} {format_ranges(silent)} {verb} shown no Python stacks: Python "
            "does not run there, or is stopped."
        )

    def _ask_for_stacks(self, rank: int, pid: int) -> None:
        self._shown_now = rank if pid else None
        self._controls.ask_for_stacks(rank, pid)

    def pass_on(self, rank: int, stream: str, data: bytes) -> None:
        """Pass on the output of the instance that is being shown."""
        if rank == self._shown_now and stream == self._controls.error_stream and data:
            self._shown.add(rank)
            self.client.write("stdout", data)

    def _head(self, sentence: str) -> None:
        """Write a headline of the stacks, on poprun's stderr as well."""
        self._controls.say(sentence)
        self.client.write("stdout", f"{sentence}\n".encode())


class Clients:
    """The clients of one job, in all its attempts.

    Args:
        identity: The id of the job.
    """

    def __init__(self, identity: str) -> None:
        try:
            # The key is empty: the kernel names the user of each client.
            self._socket = ControlSocket(
                f"@{protocol.CLIENTS_NAME}{identity}/", MOST_UNKNOWN, most_unknown=0
            )
        except OSError as error:
            raise LaunchError(
                f"The socket for popctl cannot be opened: {error.strerror}."
            ) from None
        self._clients: list[ClientConnection] = []
        self._dump: _Dump | None = None
        self._measured_at = -inf
        # The client that has asked to stop the job while no attempt runs.
        self._stopped_by = ""
        requests = {
            protocol.SHOW_JOB: self._show_job,
            protocol.STOP_JOB: self._stop_job,
            protocol.WATCH_OUTPUT: self._watch_output,
            protocol.DUMP_STACKS: self._dump_stacks,
        }
        # A client that closes its connection, or sends a second request on it, is
        # served no more; the data that it was sent stay readable for it.
        self._handlers = {
            kind: Handler(
                accept=partial(self._accept, serve),
                receive=lambda link, messages: link.close(),
            )
            for kind, serve in requests.items()
        }

    def show(self, view: JobView, tap: OutputTap) -> None:
        """Set the view and the output of the attempt that begins."""
        self._view = view
        self.tap = tap
        tap.listener = self._pass_on

    def begin(self, controls: Controls) -> None:
        """Serve clients of the attempt from now on."""
        self._controls = controls
        # A connection that is refused here is no event of the job.
        self._socket.handle_with(self._handlers, lambda event: None)

    def listen(self, event: Event) -> None:
        """Take in an event of the job."""
        self._view.listen(event)
        if isinstance(event, StacksAvailable) and self._dump is not None:
            self._dump.answer(event.rank, list(event.pids), time.monotonic())

    # --- For the loop.

    def interests(self, now: float) -> Iterator[Interest]:
        return self._socket.interests(now)

    def deadline(self, now: float) -> float:
        due = [self._socket.deadline(now)]
        due += [client.deadline() for client in self._clients]
        if self._dump is not None:
            due.append(self._dump.deadline())
        return min(due)

    def tick(self, now: float) -> None:
        self._socket.tick(now)
        for client in self._clients:
            client.tick(now)
            if now >= client.measures_at:
                client.measures_at = inf
                self._measure(now)
            if now >= client.shows_at and not client.link.has_unsent:
                self._show(client, now)
        if self._dump is not None:
            self._go_on_with_dump(self._dump)
        for client in [c for c in self._clients if c.link.fileno() < 0]:
            self._forget(client)

    def end(self, exit_code: int, cause: str) -> None:
        """Tell all clients how the job has ended, and close their connections.

        Messages that a client has not read by now are lost: the job does not wait.
        """
        for client in self._clients:
            client.send(protocol.JOB_ENDED, exit_code, cause.encode())
        self.close()

    def close(self) -> None:
        self._socket.close()

    # --- While no attempt runs.

    def pause(self) -> None:
        """End requests about the attempt that is over, before another one follows."""
        for client in self._clients:
            if client.watched is not None:
                client.finish(ATTEMPT_OVER)
                client.watched = None
        if self._dump is not None:
            self._dump.client.refuse(NO_STACKS)
            self._dump = None
        self.begin_without_attempt()

    def begin_without_attempt(self) -> None:
        """Serve clients while no attempt runs: before the first, or between two."""

        def note_stop(event: Event) -> None:
            if isinstance(event, Interrupted):
                self._stopped_by = event.client

        self.begin(Controls(emit=note_stop))

    def wait(self, seconds: float, until: int | None = None) -> str:
        """Serve clients for a while; return who has asked to stop the job, if any.

        Args:
            until: A descriptor that ends the wait when it can be read.
        """
        ends_by = time.monotonic() + seconds

        def end() -> None:
            nonlocal ends_by
            ends_by = -inf

        more = () if until is None else (Interest(until, READ, end),)
        while not self._stopped_by and (now := time.monotonic()) < ends_by:
            due = min(ends_by, self.deadline(now))
            waiter.serve((*more, *self.interests(now)), due)
            self.tick(time.monotonic())
        return self._stopped_by

    # --- The clients.

    def _accept(
        self,
        serve: Callable[[ClientConnection, list[Any]], None],
        link: Channel,
        fields: list[Any],
    ) -> bool:
        """Serve the request of a new client, unless there are too many clients.

        Args:
            fields: The fields of the request after the version and the key.
        """
        client = ClientConnection(link)
        if len(self._clients) < MOST_CLIENTS:
            self._clients.append(client)
            serve(client, fields)
        else:
            client.refuse(
                f"The job has {MOST_CLIENTS} other clients, which is the maximum. End "
                "one of them."
            )
            link.close()
        return True

    def _forget(self, client: ClientConnection) -> None:
        self._clients.remove(client)
        if self._dump is not None and self._dump.client is client:
            self._dump = None

    # --- Showing the job.

    def _show_job(self, client: ClientConnection, fields: list[Any]) -> None:
        if fields[1] != 1:
            self._send_view(client, with_instances=False)
            client.close_after_reading()
            return
        interval = fields[0] / 1000
        client.interval = max(interval, LEAST_INTERVAL_S) if interval else 0.0
        self._schedule(client, time.monotonic())

    def _schedule(self, client: ClientConnection, at: float) -> None:
        """Let a client be shown what the instances use at a time."""
        client.measures_at = at
        client.shows_at = at + self._remote_wait

    @property
    def _remote_wait(self) -> float:
        return REMOTE_USAGE_S if self._view.names_hosts else 0.0

    def _show(self, client: ClientConnection, now: float) -> None:
        self._send_view(client, with_instances=True)
        if client.interval:
            self._schedule(client, now + client.interval - self._remote_wait)
        else:
            client.shows_at = inf
            client.close_after_reading()

    def _send_view(self, client: ClientConnection, *, with_instances: bool) -> None:
        phase = self._controls.phase()
        value = self._view.as_json(phase, with_instances=with_instances)
        client.send(protocol.JOB_SHOWN, value)

    def _measure(self, now: float) -> None:
        if now >= self._measured_at + LEAST_INTERVAL_S:
            self._measured_at = now
            self._controls.measure()

    # --- Stopping the job.

    def _stop_job(self, client: ClientConnection, fields: list[Any]) -> None:
        # Where poprun itself was stopped, one may have given up long ago, and said so.
        if client.link.is_at_end:
            return
        who = f"popctl (PID {client.pid})"
        client.send(protocol.REQUEST_ACCEPTED)
        # It has the effect of Ctrl-C, and of a second one.
        for _ in range(2 if fields[0] == 1 else 1):
            self._controls.emit(Interrupted(signal=SIGINT, client=who))

    # --- The output of an instance.

    def _watch_output(self, client: ClientConnection, fields: list[Any]) -> None:
        rank = fields[0]
        if refusal := self._refusal_of(rank):
            client.refuse(refusal)
            return
        client.send(protocol.REQUEST_ACCEPTED)
        client.watched = rank

    def _pass_on(self, rank: int, stream: str, data: bytes) -> None:
        """Pass the next bytes of a stream on; none are its end."""
        for client in [c for c in self._clients if c.watched == rank]:
            if data:
                client.write(stream, data)
            elif not self.tap.is_open(rank):
                client.finish(f"The output of instance {rank} has ended.")
        if self._dump is not None:
            self._dump.pass_on(rank, stream, data)

    def _refusal_of(self, rank: int) -> str:
        """Return why there is no output of an instance, "" if there is."""
        if rank >= self._view.num_instances:
            last = self._view.num_instances - 1
            own = f"its instances are 0 to {last}" if last else "its only instance is 0"
            return f"There is no instance {rank} in the job: {own}."
        if self._view.has_ended(rank) and not self.tap.is_open(rank):
            again = self._controls.phase() is None
            more = "; the job is being started again" if again else ""
            return f"Instance {rank} has ended{more}."
        return ""

    # --- Python stacks.

    def _dump_stacks(self, client: ClientConnection, fields: list[Any]) -> None:
        ranks = list(fields[0])
        if refusal := self._refusal_of_dump(ranks):
            client.refuse(refusal)
            return
        client.send(protocol.REQUEST_ACCEPTED)
        running = [rank for rank in ranks if not self._view.has_ended(rank)]
        self._dump = _Dump(client, running, self._controls)

    def _refusal_of_dump(self, ranks: Sequence[int]) -> str:
        """Return why the instances show no Python stacks now, "" if they do."""
        if unknown := [rank for rank in ranks if rank >= self._view.num_instances]:
            return self._refusal_of(unknown[0])
        if self._controls.phase() is not Phase.RUNNING:
            return NO_STACKS
        if self._dump is None:
            return ""
        return (
            f"Process {self._dump.client.pid} is getting the job's Python stacks "
            "at the moment. Try again when it has them."
        )

    def _go_on_with_dump(self, dump: _Dump) -> None:
        if self._controls.phase() is not Phase.RUNNING:
            dump.client.refuse(NO_STACKS)
            self._dump = None
            return
        # A process may have written since the loop began to wait.
        dump.tick(time.monotonic())
        if dump.over:
            dump.client.finish(dump.describe_silent())
            self._dump = None
