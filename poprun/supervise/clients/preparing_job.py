"""Serves the clients of a job before its first attempt.

popctl lists the job from the first phase on that waits for others. A thread serves its
clients: the main thread waits for a name server, a host or IPUs then.
"""

import errno
import os
import signal
from collections.abc import Sequence
from math import inf
from threading import Thread

from poprun import early_signals
from poprun.errors import LaunchError, PoprunError, explain_errno
from poprun.output.output_tap import OutputTap
from poprun.supervise.clients.job_view import JobView
from poprun.supervise.clients.server import Clients

# Phases that last for milliseconds: a socket would make each launch slower.
SHORT_PHASES = ("", "checking the hosts", "allocating the partition")
# The signals to end the process with: the first that its caller does not ignore.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class PreparingJob:
    """Serves the clients of a job until its first attempt does.

    Args:
        shape: How many instances and replicas it has, 0 if that is not known yet.
    """

    def __init__(self, identity: str, program: Sequence[str], shape: tuple[int, int]):
        self._identity = identity
        self._view = JobView(
            id=identity,
            program=program,
            # It may be deleted while the job waits.
            directory=os.getcwd(),
            num_instances=shape[0],
            num_replicas=shape[1],
        )
        self._clients: Clients | None = None
        self._thread: Thread | None = None
        # A write to this descriptor ends the thread.
        self._end = -1
        self._is_over = False

    def set_shape(self, num_instances: int, num_replicas: int) -> None:
        """Show these numbers of instances and replicas from now on."""
        fields = self._view.fields
        fields["num_instances"], fields["num_replicas"] = num_instances, num_replicas

    def enter(self, phase: str) -> None:
        """Take in what poprun does from now on."""
        self._view.fields["step"] = phase
        is_served = self._clients is not None or self._is_over
        if not is_served and phase not in SHORT_PHASES:
            self._open()

    def _open(self) -> None:
        clients, end = Clients(self._identity), -1
        clients.show(self._view, OutputTap())
        clients.begin_without_attempt()
        # A signal must interrupt what the main thread waits in, not this thread.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            end = os.eventfd(0, os.EFD_CLOEXEC)
            thread = Thread(
                target=self._serve, args=(clients, end), name="popctl", daemon=True
            )
            thread.start()
        except (OSError, RuntimeError) as error:
            clients.close()
            if end >= 0:
                os.close(end)
            # Python does not say why there are no more threads.
            why = explain_errno(getattr(error, "errno", errno.EAGAIN))
            raise LaunchError(
                "The thread that answers popctl while the job waits cannot be started: "
                f"{why}"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._clients, self._thread, self._end = clients, thread, end

    def hand_over(self) -> Clients | None:
        """Return the clients for the first attempt to serve; None if there are none."""
        self._is_over = True
        if self._thread is not None:
            os.eventfd_write(self._end, 1)
            self._thread.join()
            os.close(self._end)
            self._thread = None
        return self._clients

    def __enter__(self) -> "PreparingJob":
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> None:
        """Serve no clients any more, if no attempt does; tell them of the error."""
        if self._is_over or (clients := self.hand_over()) is None:
            return
        if isinstance(error, PoprunError):
            clients.end(error.exit_code, str(error))
        else:
            clients.close()
        self._clients = None

    def _serve(self, clients: Clients, end: int) -> None:
        """Answer clients until the end is written to a descriptor."""
        if client := clients.wait(inf, until=end):
            self._stop(clients, client)

    def _stop(self, clients: Clients, client: str) -> None:
        """End this process as a signal would, before any instance was started."""
        early_signals.stopped_by = client
        number = next(
            (n for n in ENDING_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN),
            signal.SIGKILL,
        )
        clients.end(
            128 + number, f"Stopped by {client} before any instance was started."
        )
        os.kill(os.getpid(), number)
