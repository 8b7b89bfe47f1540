"""The requests of popctl at one job: who may ask, and what follows.

popctl connects to a socket that is named after the job. Only processes of poprun's own
user are clients, root's are not. They are bounded in number and in what waits for them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from signal import SIGINT

from poprun.errors import LaunchError
from poprun.host.control_socket import ControlSocket, Handler, Messages
from poprun.output import waiter
from poprun.output.output_tap import OutputTap, Watcher
from poprun.output.waiter import READ, Interest
from poprun.supervise.clients.connection import ClientConnection
from poprun.supervise.clients.job_view import JobView
from poprun.supervise.stacks import Stacks
from poprun.supervise.stopping import Phase
from poprun.wire import protocol
from poprun.wire.channel import Channel
from poprun.wire.events import Event, Interrupted, StacksAvailable
from poprun.words import format_ranges

MOST_CLIENTS = 16
# Those that have connected and sent nothing.
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
    """What clients may do to an attempt, by its supervisor."""

    emit: Callable[[Event], None]
    # None between two attempts.
    phase: Callable[[], Phase | None]
    # Ask the hosts what their instances use; they answer by UsageMeasured.
    measure: Callable[[], None]
    # Ask an instance for its Python stacks, as Stacks does.
    ask_for_stacks: Callable[[int, int], None]
    tail: Callable[[int], bytes]
    say: Callable[[str], None]
    error_stream: str


class _Viewer:
    """A client that is shown the job, once or at intervals."""

    def __init__(self, client: ClientConnection, interval: float) -> None:
        self.client = client
        # 0 for once.
        self.interval = interval
        # When the instances are measured for it, and when it is shown the job.
        self.measures_at = self.due = inf

    @property
    def next_step(self) -> float:
        return min(self.measures_at, inf if self.client.is_behind else self.due)


class _Dump:
    """One round of Python stacks, for one client."""

    def __init__(self, client: ClientConnection, ranks: Sequence[int]) -> None:
        self.client = client
        self.ranks = ranks
        # The instance whose stderr is passed on now, and all that have shown something.
        self.current: int | None = None
        self.shown: set[int] = set()


class Clients:
    """The clients of one job, in all its attempts.

    Args:
        identity: The id of the job.
    """

    def __init__(self, identity: str) -> None:
        try:
            # The key is empty: the kernel says whose client it is.
            self._socket = ControlSocket(
                f"@{protocol.CLIENTS_NAME}{identity}/", MOST_UNKNOWN, most_unknown=0
            )
        except OSError as error:
            raise LaunchError(
                f"The socket for popctl cannot be opened: {error.strerror}."
            ) from None
        self._clients: list[ClientConnection] = []
        self._viewers: list[_Viewer] = []
        # By client: the instance whose output it gets, and what passes that on.
        self._readers: dict[ClientConnection, tuple[int, Watcher]] = {}
        self._dump: _Dump | None = None
        self._measured_at = -inf
        # Who has asked to stop the job between two attempts.
        self._stopped_by = ""

    def show(self, view: JobView, tap: OutputTap) -> None:
        """Take in what clients are shown of the attempt that begins."""
        self._view = view
        self.tap = tap
        for rank, watcher in self._readers.values():
            tap.watch(rank, watcher)

    def begin(self, controls: Controls) -> None:
        """Serve clients of the attempt from now on."""
        self._controls = controls
        self._stacks = Stacks(self._ask_for_stacks, controls.tail, self._say)
        handlers = {
            protocol.SHOW_JOB: self._on_show,
            protocol.STOP_JOB: self._on_stop,
            protocol.WATCH_OUTPUT: self._on_watch,
            protocol.DUMP_STACKS: self._on_dump,
        }
        self._socket.handle_with(
            {
                kind: Handler(accept=f, receive=self._receive)
                for kind, f in handlers.items()
            },
            # What is refused here is no event of the job.
            lambda event: None,
        )

    def listen(self, event: Event) -> None:
        """Take in what has happened to the job."""
        self._view.listen(event)
        if isinstance(event, StacksAvailable) and self._dump is not None:
            pids = list(event.pids)
            self._stacks.answer(event.rank, pids, time.monotonic())

    # --- What the loop needs.

    def interests(self, now: float) -> Iterator[Interest]:
        return self._socket.interests(now)

    def deadline(self, now: float) -> float:
        due = [viewer.next_step for viewer in self._viewers]
        closes = [client.closes_by for client in self._clients]
        return min(self._socket.deadline(now), self._stacks.deadline(), *due, *closes)

    def tick(self, now: float) -> None:
        self._socket.tick(now)
        for client in self._clients:
            client.tick(now)
        for viewer in tuple(self._viewers):
            if now >= viewer.measures_at:
                viewer.measures_at = inf
                self._measure(now)
            if now >= viewer.next_step:
                self._show(viewer, now)
        if self._dump is not None:
            self._go_on_with_dump(self._dump, now)
        for client in [c for c in self._clients if not c.is_open]:
            self._forget(client)

    def end(self, exit_code: int, cause: str) -> None:
        """Tell all clients how the job has ended, and close their connections.

        What a client has not read by now is lost: the job does not wait for it.
        """
        for client in self._clients:
            client.send(protocol.JOB_ENDED, exit_code, cause.encode())
        self.close()

    def close(self) -> None:
        self._socket.close()

    # --- Between two attempts.

    def pause(self) -> None:
        """Take in that the attempt is over, and that another one follows."""
        now = time.monotonic()
        for client, (rank, watcher) in self._readers.items():
            client.finish(ATTEMPT_OVER, now=now)
            self.tap.unwatch(rank, watcher)
        self._readers.clear()
        if self._dump is not None:
            self._dump.client.refuse(NO_STACKS, now=now)
            self._end_dump()

        self.begin_without_attempt()

    def begin_without_attempt(self) -> None:
        """Serve clients while no attempt runs: before the first, or between two."""

        def note_stop(event: Event) -> None:
            if isinstance(event, Interrupted):
                self._stopped_by = event.client

        nothing = Controls(
            emit=note_stop,
            phase=lambda: None,
            measure=lambda: None,
            ask_for_stacks=lambda rank, pid: None,
            tail=lambda rank: b"",
            say=lambda sentence: None,
            error_stream="",
        )
        self.begin(nothing)

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

    def _add(self, link: Channel) -> ClientConnection | None:
        """Return a new client, unless there are too many."""
        client = ClientConnection(link)
        if len(self._clients) >= MOST_CLIENTS:
            sentence = (
                f"The job has {MOST_CLIENTS} other clients, which is the maximum. End "
                "one of them."
            )
            client.refuse(sentence, now=time.monotonic())
            link.close()
            return None
        self._clients.append(client)
        return client

    def _receive(self, link: Channel, messages: Messages | None) -> None:
        """Close a connection that its client has closed, or sends a second request on.

        What it was sent stays readable for it.
        """
        link.close()

    def _forget(self, client: ClientConnection) -> None:
        self._clients.remove(client)
        self._viewers = [v for v in self._viewers if v.client is not client]
        if client in self._readers:
            self.tap.unwatch(*self._readers.pop(client))
        if self._dump is not None and self._dump.client is client:
            self._end_dump()

    # --- Showing the job.

    def _on_show(self, link: Channel, fields: list[bytes]) -> bool:
        interval, with_instances = int(fields[2]) / 1000, fields[3] == b"1"
        if client := self._add(link):
            now = time.monotonic()
            if not with_instances:
                self._send_view(client, with_instances=False)
                client.close_after_reading(now)
                return True
            interval = max(interval, LEAST_INTERVAL_S) if interval else 0.0
            self._viewers.append(viewer := _Viewer(client, interval))
            self._schedule(viewer, now)
        return True

    def _schedule(self, viewer: _Viewer, at: float) -> None:
        """Let a viewer be shown what the instances use at a time."""
        viewer.measures_at = at
        viewer.due = at + self._remote_wait

    @property
    def _remote_wait(self) -> float:
        return REMOTE_USAGE_S if len(self._view.hosts) > 1 else 0.0

    def _show(self, viewer: _Viewer, now: float) -> None:
        self._send_view(viewer.client, with_instances=True)
        if viewer.interval:
            self._schedule(viewer, now + viewer.interval - self._remote_wait)
        else:
            self._viewers.remove(viewer)
            viewer.client.close_after_reading(now)

    def _send_view(self, client: ClientConnection, *, with_instances: bool) -> None:
        phase = self._controls.phase()
        value = self._view.as_json(phase, with_instances=with_instances)
        client.send(protocol.JOB_SHOWN, value)

    def _measure(self, now: float) -> None:
        if now >= self._measured_at + LEAST_INTERVAL_S:
            self._measured_at = now
            self._controls.measure()

    # --- Stopping the job.

    def _on_stop(self, link: Channel, fields: list[bytes]) -> bool:
        client = self._add(link)
        # Where poprun itself was stopped, one may have given up long ago, and said so.
        if client and not link.is_at_end:
            who = f"popctl (PID {client.pid})"
            client.send(protocol.REQUEST_ACCEPTED)
            # As Ctrl-C, and a second one.
            for _ in range(2 if fields[2] == b"1" else 1):
                self._controls.emit(Interrupted(signal=SIGINT, client=who))
        return True

    # --- The output of an instance.

    def _on_watch(self, link: Channel, fields: list[bytes]) -> bool:
        if (client := self._add(link)) is None:
            return True
        rank = int(fields[2])
        if (refusal := self._refusal_of(rank)) is not None:
            client.refuse(refusal, now=time.monotonic())
            return True
        client.send(protocol.REQUEST_ACCEPTED)
        watcher = partial(self._pass_on, client, rank)
        self._readers[client] = rank, watcher
        self.tap.watch(rank, watcher)
        return True

    def _pass_on(
        self, client: ClientConnection, rank: int, stream: str, data: bytes
    ) -> None:
        if data:
            client.write(stream, data)
        elif not self.tap.is_open(rank):
            sentence = f"The output of instance {rank} has ended."
            client.finish(sentence, now=time.monotonic())

    def _refusal_of(self, rank: int) -> str | None:
        """Return why there is no output of an instance, if so."""
        if rank >= self._view.num_instances:
            last = self._view.num_instances - 1
            own = f"its instances are 0 to {last}" if last else "its only instance is 0"
            return f"There is no instance {rank} in the job: {own}."
        if self._view.has_ended(rank) and not self.tap.is_open(rank):
            again = self._controls.phase() is None
            more = "; the job is being started again" if again else ""
            return f"Instance {rank} has ended{more}."
        return None

    # --- Python stacks.

    def _on_dump(self, link: Channel, fields: list[bytes]) -> bool:
        if (client := self._add(link)) is None:
            return True
        ranks = [int(rank) for rank in fields[2].split(b",")]
        refusal = None
        if unknown := [rank for rank in ranks if rank >= self._view.num_instances]:
            refusal = self._refusal_of(unknown[0])
        elif self._controls.phase() is not Phase.RUNNING:
            refusal = NO_STACKS
        elif self._dump is not None:
            refusal = (
                f"Process {self._dump.client.pid} is getting the job's Python stacks "
                "at the moment. Try again when it has them."
            )
        if refusal is not None:
            client.refuse(refusal, now=time.monotonic())
            return True
        running = [rank for rank in ranks if not self._view.has_ended(rank)]
        self._dump = _Dump(client, running)
        client.send(protocol.REQUEST_ACCEPTED)
        self._stacks.start(self._dump.ranks, time.monotonic())
        return True

    def _ask_for_stacks(self, rank: int, pid: int) -> None:
        assert self._dump is not None
        self._watch_stacks(rank if pid else None)
        self._controls.ask_for_stacks(rank, pid)

    def _watch_stacks(self, rank: int | None) -> None:
        """Pass the stderr of an instance on to the client of the dump."""
        dump = self._dump
        assert dump is not None
        if dump.current is not None:
            self.tap.unwatch(dump.current, self._on_stacks)
        dump.current = rank
        if rank is not None:
            self.tap.watch(rank, self._on_stacks)

    def _on_stacks(self, stream: str, data: bytes) -> None:
        dump = self._dump
        assert dump is not None
        assert dump.current is not None
        if data and stream == self._controls.error_stream:
            dump.shown.add(dump.current)
            dump.client.write("stdout", data)

    def _say(self, sentence: str) -> None:
        """Write a headline of the stacks, on poprun's stderr as well."""
        self._controls.say(sentence)
        if self._dump is not None:
            self._dump.client.write("stdout", f"{sentence}\n".encode())

    def _go_on_with_dump(self, dump: _Dump, now: float) -> None:
        if self._controls.phase() is not Phase.RUNNING:
            dump.client.refuse(NO_STACKS, now=now)
            self._end_dump()
            return
        self._stacks.tick(now)
        if self._stacks.over:
            dump.client.finish(_describe_silent(dump), now=now)
            self._end_dump()

    def _end_dump(self) -> None:
        if self._dump is not None:
            self._watch_stacks(None)
            self._dump = None
            self._stacks = Stacks(self._ask_for_stacks, self._controls.tail, self._say)


def _describe_silent(dump: _Dump) -> str:
    """Return a sentence about the instances that have shown nothing, "" for none."""
    silent = [rank for rank in dump.ranks if rank not in dump.shown]
    if not silent:
        return ""
    noun, verb = ("Instance", "has") if len(silent) == 1 else ("Instances", "have")
    return (
        f"{noun} {format_ranges(silent)} {verb} shown no Python stacks: Python does "
        "not run there, or is stopped."
    )
