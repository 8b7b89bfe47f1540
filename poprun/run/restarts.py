"""The attempts to run a job, for --max-restarts.

Between two attempts poprun waits, reaches the hosts again, and prepares the next one.
Meanwhile the new guard has the shared resources, and undoes them if poprun dies.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from poprun.backoff import restart_wait
from poprun.errors import TIMED_OUT, HostUnreachableError, PoprunError
from poprun.helpers import processes
from poprun.helpers.end_actions import EndActions
from poprun.helpers.own_process import CALLER_INTERRUPT
from poprun.helpers.processes import signal_name
from poprun.job.values import Job
from poprun.plan.values import Plan
from poprun.result.verdict import Verdict
from poprun.run.attempt import Successor, undo_job
from poprun.run.context import RunContext
from poprun.run.preparation import Preparation
from poprun.supervise.clients.server import Clients
from poprun.supervise.guard_start import StartedGuard, start_guard
from poprun.supervise.signals import ENDING_SIGNALS, HANDLED_SIGNALS
from poprun.vipu.leases import CUT_OFF_S

# The agent of a host, or its guard, kills the instances 1.2 s after the connection is
# closed. No attempt starts before that.
CLOSED_S = 2.0
# How often to look whether the guard lives.
LOOK_S = 0.25


class StoppedError(Exception):
    """A signal or a client ends the job between two attempts."""

    def __init__(self, number: int, client: str = "") -> None:
        super().__init__(client or signal_name(number))
        self.exit_code = 128 + number


class Restarts:
    """The attempts of one job.

    Args:
        run_attempt: The stage of this name, with the context.
    """

    def __init__(
        self,
        context: RunContext,
        preparation: Preparation,
        run_attempt: Callable[..., tuple[Verdict, Successor | None]],
    ) -> None:
        self._context = context
        self._preparation, self._run_attempt = preparation, run_attempt
        self._log, self._show = context.log, context.phase_line.show
        self._most = context.settings["max-restarts"]
        # When the first attempt was started.
        self._began = time.monotonic()
        # The cause of each attempt so far, and the number of the next one.
        self._causes: list[str] = []
        self._number = 0
        # How many of them have failed, and how many instances were started again while
        # others went on.
        self._num_failures = self._num_in_place = 0
        # Why the last attempt could not be started.
        self._refusal: PoprunError | None = None

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
        while successor is not None:
            last = successor
            self._causes.append(verdict.sentence)
            self._number += 1
            self._num_in_place += last.num_restarts
            self._num_failures += last.has_failed
            self._guard, self._clients = last.guard, last.clients
            wait = self._wait_before(last, job)
            if wait >= self._time_left(job):
                why = "--timeout leaves no time."
                if last.growth is None:
                    return self._end(job, verdict.exit_code, why)
                return self._end(job, TIMED_OUT, why, outcome="timed_out")
            try:
                plan, job = self._prepare_next(job, wait, last)
                clients = self._clients
                verdict, successor = self._attempt(job, self._guard, plan, clients)
            except StoppedError as stopped:
                why = f"Stopped by {stopped} before attempt {self._number} was started."
                return self._end(job, stopped.exit_code, why, outcome="interrupted")
            except HostUnreachableError as error:
                self._refusal = error
                if last.growth is not None:
                    self._preparation.undo_growth(last.growth)
                elif not self._num_left:
                    return self._end(job, error.exit_code, str(error))
                self._log.error(str(error))
                verdict = Verdict(exit_code=error.exit_code, sentence=str(error))
                successor = self._after_refusal(last)
        if self._causes:
            self._causes.append(verdict.sentence)
            self._show_causes()
        return verdict.exit_code

    def _after_refusal(self, last: Successor) -> Successor:
        """Return the successor of an attempt that could not be started."""
        # Lost hosts may be back by then. If the job was stopped to grow, it goes on
        # without the new hosts, which is no failure of it.
        new_hosts = () if last.growth is None else last.growth.new_hosts
        return replace(
            last,
            guard=self._guard,
            lost_hosts=frozenset(new_hosts),
            may_run=False,
            growth=None,
            has_failed=last.growth is None,
            num_restarts=0,
        )

    def _prepare_next(
        self, job: Job, wait: float, successor: Successor
    ) -> tuple[Plan, Job]:
        """Wait, and prepare the next attempt.

        Raises:
            StoppedError: A signal or a client ends the job.
            HostUnreachableError: A later attempt may succeed.
        """
        self._refusal = None
        try:
            if successor.stopped_by:
                raise StoppedError(successor.stopped_by)
            with _signals_raise():
                self._sleep(wait, job, successor)
                last = replace(successor, guard=self._guard)
                prepared = self._preparation.prepare_next(
                    self._number, self._num_failures, last, self._time_left(job)
                )
                self._wait_until(last.lost_at + CLOSED_S, prepared[1])
                self._show("")
                return prepared
        except (StoppedError, HostUnreachableError):
            raise
        except Exception as error:
            # No restart would repair this error; the caller reports it.
            exit_code = getattr(error, "exit_code", 1)
            self._end(job, exit_code, str(error) or repr(error))
            raise

    def _attempt(
        self, job: Job, guard: StartedGuard, plan: Plan, clients: Clients | None
    ) -> tuple[Verdict, Successor | None]:
        if self._number:
            job = replace(job, timeout_used=time.monotonic() - self._began)
        return self._run_attempt(
            job,
            guard,
            plan,
            restarts_left=self._num_left,
            clients=clients,
            make_search=self._preparation.make_search,
            make_growth=self._preparation.make_growth,
            changed=self._causes[-1] if self._causes else "",
        )

    @property
    def _num_left(self) -> int:
        """How many restarts are left of --max-restarts."""
        used = self._num_failures + self._num_in_place
        return max(0, int(self._most) - used)

    def _time_left(self, job: Job) -> float:
        """Return how many seconds of --timeout are left."""
        return self._began + job.timeout - time.monotonic()

    def _wait_before(self, successor: Successor, job: Job) -> float:
        """Return how long to wait before the hosts are reached again."""
        lost = successor.lost_hosts
        if successor.growth is not None and not lost:
            return 0.0
        wait = restart_wait(self._num_failures - 1)
        if not lost:
            return wait
        # Its instances have ended by then.
        if successor.may_run or not self._preparation.can_do_without(lost):
            wait = max(wait, CUT_OFF_S)
        elif job.devices is not None:
            wait = max(wait, CLOSED_S)
        return max(0.0, successor.lost_at + wait - time.monotonic())

    def _sleep(self, seconds: float, job: Job, successor: Successor) -> None:
        """Wait, with a guard that lives all the time."""
        number = self._num_failures + self._num_in_place
        count = f": restart {number} of at most {self._most}"
        if seconds or successor.has_failed:
            rounded = round(seconds, 1)
            when = f"in {rounded:g} s" if rounded else "now"
            self._log.say(
                f"the job will be started again {when}"
                f"{count if successor.has_failed else ''}."
            )
        self._context.recorder.wait_for_restart(seconds)
        self._show("waiting to start the job again")
        self._wait_until(time.monotonic() + seconds, job)
        self._show("checking the hosts")
        if job.devices is not None:
            if successor.lost_hosts:
                job.devices.detach_all()
            # The guard before this one had to end first.
            job.devices.live_with(self._guard.pid)

    def _wait_until(self, ends_by: float, job: Job) -> None:
        while (left := ends_by - time.monotonic()) > 0:
            if client := self._clients.wait(min(LOOK_S, left)):
                raise StoppedError(signal.SIGINT, client)
            self._keep_guard(job)

    def _keep_guard(self, job: Job) -> None:
        """Replace a guard that was killed."""
        guard = processes.process(self._guard.pid)
        if guard is not None and not guard.zombie:
            return
        self._log.warn("poprun's guard was killed; another takes its place.")
        self._guard = start_guard(self._context.caller_environ)
        for item in job.job_resources:
            self._guard.tell(EndActions().register(item.end_action))

    def _end(self, job: Job, exit_code: int, why: str, outcome: str = "") -> int:
        """End the job without another attempt; return the exit code.

        Args:
            outcome: How the job ended, for its result, if no attempt says that.
        """
        if outcome:
            self._context.recorder.refuse(exit_code, why, outcome=outcome)
        elif self._refusal is not None:
            refusal = self._refusal
            self._context.recorder.refuse(refusal.exit_code, str(refusal))
        self._show("")
        for failure in undo_job(job, self._guard):
            self._log.warn(failure)
        # An attempt that has not begun may have been granted other devices.
        self._preparation.cancel(self._guard)
        self._clients.end(exit_code, why)
        self._causes.append(f"not started: {why}")
        self._show_causes()
        return exit_code

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
        for each in before.keys() - {signal.SIGTSTP}:
            signal.signal(each, signal.SIG_IGN)
        raise StoppedError(signal.SIGINT if number == CALLER_INTERRUPT else number)

    handlers: dict[int, Any] = dict.fromkeys((*ENDING_SIGNALS, CALLER_INTERRUPT), stop)
    handlers[signal.SIGTSTP] = signal.SIG_DFL
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        # One may have come since the last attempt was over.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        for number, handler in before.items():
            signal.signal(number, handler)
