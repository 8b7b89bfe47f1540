"""A job before its first attempt, as popctl sees it: a view, and what serves clients.

It is listed from the first phase on that waits for others. What poprun waits for then,
a host or IPUs, knows nothing of clients: the kernel sends SIGIO when one comes.
"""

import fcntl
import os
import signal
import time
from collections.abc import Sequence

from poprun.annotations import TYPE_CHECKING, Any
from poprun.words import json_text

if TYPE_CHECKING:
    from poprun.job.clients.server import Clients
    from poprun.job.events import Event
    from poprun.job.supervise.stopping import Phase

# Phases that last for milliseconds: a socket would make each launch slower.
SHORT_PHASES = ("", "checking the hosts", "allocating the partition")
# How long a client of this user may take to say what it wants. poprun waits meanwhile.
REQUEST_S = 1.0
# What tells the process to end, by the first that its caller does not ignore.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# STATE: who has stopped the job, for the sentence with which this process ends.
stopped_by = ""


class PreparingView:
    """What clients are told of such a job: as JobView, but it has no plan yet."""

    hosts: Sequence[str] = ()

    def __init__(self, identity: str, program: Sequence[str], shape: tuple[int, int]):
        self._identity = identity
        self._program = program
        self.num_instances, self._num_replicas = shape
        self._began, self._began_at = time.monotonic(), time.time()
        # What poprun does at the moment.
        self.step = ""

    def listen(self, event: "Event") -> None:
        """Do nothing: the job has no events yet."""

    def has_ended(self, rank: int) -> bool:
        return False

    def as_json(self, phase: "Phase | None", *, with_instances: bool) -> bytes:
        import json

        from poprun.job.clients.job_view import VERSION

        value: dict[str, Any] = {
            "version": VERSION,
            "id": self._identity,
            "attempt": 0,
            "pid": os.getpid(),
            "program": [json_text(word) for word in self._program],
            "directory": json_text(os.getcwd()),
            "started": self._began_at,
            "elapsed": time.monotonic() - self._began,
            "phase": "preparing",
            "step": self.step,
            "hosts": [],
            "num_instances": self.num_instances,
            "num_running": 0,
            "num_ended": 0,
            "num_replicas": self._num_replicas,
            "num_ipus": 0,
            "partition": None,
            "output_directory": None,
        }
        if with_instances:
            value["instances"] = []
        return json.dumps(value).encode()


class PreparingJob:
    """Serves the clients of a job until its first attempt does.

    Args:
        shape: How many instances and replicas it has.
    """

    def __init__(self, identity: str, program: Sequence[str], shape: tuple[int, int]):
        self._identity = identity
        self._view = PreparingView(identity, program, shape)
        self._clients: Clients | None = None
        self._is_serving = self._has_come = self._is_over = False

    def enter(self, phase: str) -> None:
        """Take in what poprun does from now on."""
        self._view.step = phase
        is_free = signal.getsignal(signal.SIGIO) is signal.SIG_DFL
        is_served = self._clients is not None or self._is_over
        if not is_served and is_free and phase not in SHORT_PHASES:
            self._open()

    def _open(self) -> None:
        # 10 ms, for a job that waits for others anyway.
        from poprun.job.clients.server import Clients
        from poprun.stdio.output_tap import OutputTap

        clients = self._clients = Clients(self._identity)
        clients.show(self._view, OutputTap())
        clients.begin_without_attempt()
        signal.signal(signal.SIGIO, self._serve)
        fcntl.fcntl(clients.fileno(), fcntl.F_SETOWN, os.getpid())
        self._set_async(clients.fileno(), os.O_ASYNC)
        # No signal tells of a client that came before that.
        self._serve()

    def hand_over(self) -> "Clients | None":
        """Return the clients for the first attempt to serve; None if there are none."""
        self._is_over = True
        if self._clients is not None:
            self._set_async(self._clients.fileno(), 0)
            signal.signal(signal.SIGIO, signal.SIG_DFL)
        return self._clients

    def _set_async(self, descriptor: int, flag: int) -> None:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_ASYNC
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)

    def _serve(self, *_: object) -> None:
        """Answer clients that have come."""
        self._has_come = True
        if self._is_serving:
            return
        self._is_serving = True
        assert self._clients is not None
        try:
            while self._has_come:
                self._has_come = False
                if client := self._clients.serve_requests(REQUEST_S):
                    self._stop(client)
        finally:
            self._is_serving = False

    def _stop(self, client: str) -> None:
        """End this process as a signal would, before any instance was started."""
        global stopped_by
        stopped_by = client
        number = next(
            (n for n in ENDING_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN),
            signal.SIGKILL,
        )
        assert self._clients is not None
        self._clients.end(128 + number, f"Stopped by {client} before its start.")
        signal.raise_signal(number)
