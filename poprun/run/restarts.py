"""The attempts to run a job, for --max-restarts.

Between two attempts poprun waits, reaches the hosts again, and prepares the next one.
Meanwhile the new guard has the shared resources, and undoes them if poprun dies.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from poprun.errors import HostUnreachableError, LaunchError, PoprunError
from poprun.helpers import processes
from poprun.helpers.end_actions import EndActions
from poprun.helpers.processes import signal_name
from poprun.job.values import Job
from poprun.log import Log
from poprun.plan.values import Plan
from poprun.result.recorder import Recorder
from poprun.result.verdict import Verdict
from poprun.run.attempt import Successor, undo_job
from poprun.supervise.clients.server import Clients
from poprun.supervise.guard_start import StartedGuard, start_guard
from poprun.supervise.supervisor import (
    CALLER_INTERRUPT,
    ENDING_SIGNALS,
    HANDLED_SIGNALS,
)
from poprun.vipu.leases import CUT_OFF_S

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
# How often to look whether the guard lives.
LOOK_S = 0.25


class StoppedError(Exception):
    """A signal or a client ends the job between two attempts."""

    def __init__(self, number: int, client: str = "") -> None:
        super().__init__(client or signal_name(number))
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The stages of a run that each attempt goes through."""

    # Reaches the hosts again; the guard ends processes there. Returns a TCP port for
    # rank 0.
    reopen: Callable[[StartedGuard], int]
    # Gets the number of the attempt, and that port.
    prepare: Callable[[int, int], tuple[Plan, Job]]
    # The stage run_attempt, with the context that the attempts share.
    run: Callable[..., tuple[Verdict, Successor | None]]
    # The environment of a guard.
    environ: Mapping[str, str]
    # Shows on a terminal what poprun does, and nothing for "".
    show: Callable[[str], None]


class Restarts:
    """The attempts of one job."""

    def __init__(
        self, steps: Steps, most: int, log: Log, recorder: Recorder | None = None
    ) -> None:
        self._steps = steps
        self._most = most
        self._log = log
        self._recorder = recorder
        # When the first attempt was started.
        self._began = time.monotonic()
        # The cause of each attempt so far, and the number of the next one.
        self._causes: list[str] = []
        self._number = 0

    def run(
        self, job: Job, guard: StartedGuard, plan: Plan, clients: Clients | None
    ) -> int:
        """Run attempts until none follows, and return the exit code of the last.

        Args:
            clients: The clients that the job has had so far, if it has served any.

        Raises:
            PoprunError: An attempt cannot be started.
        """
        verdict, successor = self._attempt(job, guard, plan, clients)
        refusal: PoprunError | None = None
        while successor is not None:
            self._causes.append(verdict.sentence)
            self._number += 1
            self._guard, self._clients = successor.guard, successor.clients
            wait = self._wait_before(had_lost_hosts=successor.lost_hosts)
            if wait >= self._began + job.timeout - time.monotonic():
                self._record(refusal)
                return self._give_up(
                    job, verdict.exit_code, "--timeout leaves no time."
                )
            try:
                plan, job = self._prepare(job, wait, successor)
            except StoppedError as stopped:
                return self._stop(job, stopped)
            except (HostUnreachableError, LaunchError) as error:
                # A host that restarts takes a while: the next wait is longer.
                refusal = error
                if self._number == self._most:
                    self._record(refusal)
                    return self._give_up(job, error.exit_code, str(error))
                self._log.error(str(error))
                verdict = Verdict(exit_code=error.exit_code, sentence=str(error))
                successor = replace(successor, guard=self._guard)
                continue
            refusal = None
            verdict, successor = self._attempt(job, self._guard, plan, self._clients)
        if self._causes:
            self._causes.append(verdict.sentence)
            self._show_causes()
        return verdict.exit_code

    def _prepare(self, job: Job, wait: float, successor: Successor) -> tuple[Plan, Job]:
        """Wait, and prepare the next attempt.

        Raises:
            StoppedError: A signal or a client ends the job.
            HostUnreachableError, LaunchError: A later attempt may succeed.
        """
        try:
            with _signals_raise():
                self._sleep(wait, job, had_lost_hosts=successor.lost_hosts)
                port = self._steps.reopen(self._guard)
                prepared = self._steps.prepare(self._number, port)
                self._steps.show("")
                return prepared
        except (StoppedError, HostUnreachableError, LaunchError):
            raise
        except Exception as error:
            # No restart would repair this error; the caller reports it.
            exit_code = getattr(error, "exit_code", 1)
            self._end_job(job, exit_code, str(error) or repr(error))
            raise

    def _attempt(
        self, job: Job, guard: StartedGuard, plan: Plan, clients: Clients | None
    ) -> tuple[Verdict, Successor | None]:
        if self._number:
            job = replace(job, timeout_used=time.monotonic() - self._began)
        may_follow = self._number < self._most
        return self._steps.run(job, guard, plan, may_follow=may_follow, clients=clients)

    def _record(self, refusal: PoprunError | None) -> None:
        """Write the result of a job if its last attempt could not be started."""
        if refusal is not None and self._recorder is not None:
            self._recorder.refuse(refusal.exit_code, str(refusal))

    def _wait_before(self, *, had_lost_hosts: bool) -> float:
        # Instances of a host that is cut off end by then, and not before.
        least = CUT_OFF_S if had_lost_hosts else 0.0
        seconds = FIRST_WAIT_S * 2.0 ** (self._number - 1)
        return max(least, min(seconds, LONGEST_WAIT_S))

    def _sleep(self, seconds: float, job: Job, *, had_lost_hosts: bool) -> None:
        """Wait, with a guard that lives all the time."""
        self._log.say(
            f"the job will be started again in {seconds:g} s: restart {self._number} "
            f"of at most {self._most}."
        )
        if self._recorder is not None:
            self._recorder.wait_for_restart(seconds)
        self._steps.show("waiting to start the job again")
        ends_by = time.monotonic() + seconds
        while (left := ends_by - time.monotonic()) > 0:
            if client := self._clients.wait(min(LOOK_S, left)):
                raise StoppedError(signal.SIGINT, client)
            self._keep_guard(job)
        self._steps.show("checking the hosts")
        if job.devices is not None:
            if had_lost_hosts:
                job.devices.detach_all()
            # The guard before this one had to end first.
            job.devices.live_with(self._guard.pid)

    def _keep_guard(self, job: Job) -> None:
        """Replace a guard that was killed."""
        guard = processes.process(self._guard.pid)
        if guard is not None and not guard.zombie:
            return
        self._log.warn("poprun's guard was killed; another takes its place.")
        self._guard = start_guard(self._steps.environ)
        for item in job.job_resources:
            self._guard.tell(EndActions().register(item.end_action))

    def _stop(self, job: Job, stopped: StoppedError) -> int:
        exit_code = 128 + stopped.number
        sentence = f"Stopped by {stopped} before attempt {self._number} was started."
        if self._recorder is not None:
            self._recorder.refuse(exit_code, sentence, outcome="interrupted")
        return self._give_up(job, exit_code, sentence)

    def _give_up(self, job: Job, exit_code: int, why: str) -> int:
        """End the job without another attempt."""
        self._end_job(job, exit_code, why)
        return exit_code

    def _end_job(self, job: Job, exit_code: int, why: str) -> None:
        """Undo what the attempts share, and tell the clients and the user why."""
        self._steps.show("")
        for failure in undo_job(job, self._guard):
            self._log.warn(failure)
        self._clients.end(exit_code, why)
        self._causes.append(f"not started: {why}")
        self._show_causes()

    def _show_causes(self) -> None:
        lines = [
            f"    attempt {number}: {cause or 'succeeded'}"
            for number, cause in enumerate(self._causes)
        ]
        self._log.say("\n".join(["the attempts of the job:", *lines]))


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let a signal that ends a job raise an exception; it is blocked again after that.

    Raises:
        StoppedError: One has come.
    """

    def stop(number: int, frame: object) -> None:
        # A second signal must not interrupt the undoing of the job.
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise StoppedError(signal.SIGINT if number == CALLER_INTERRUPT else number)

    ignored = signal.SIG_IGN
    ending = (*ENDING_SIGNALS, CALLER_INTERRUPT)
    before = {n: h for n in ending if (h := signal.getsignal(n)) != ignored}
    paused = signal.getsignal(signal.SIGTSTP)
    for number in before:
        signal.signal(number, stop)
    if paused != ignored:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    try:
        # One may have come since the last attempt was over.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        for number, handler in before.items():
            signal.signal(number, handler)
        if paused != ignored:
            signal.signal(signal.SIGTSTP, paused)
