"""What comes between two attempts: waits, hosts, signals, the end. No processes."""

import os
import signal
import threading
from collections.abc import Collection, Iterator, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from poprun.errors import HostUnreachableError, OptionError
from poprun.helpers.end_actions import RemovePath
from poprun.job.values import Job, Resource
from poprun.log import Log
from poprun.result.verdict import Verdict
from poprun.run import restarts
from poprun.run.attempt import Successor
from poprun.run.restarts import CLOSED_S, Restarts
from poprun.vipu.leases import CUT_OFF_S
from poprun.wire.events import HostsAvailable

End = tuple[Verdict, Successor | None]

FAILED = "Instance 0 on localhost exited with code 3."


class Guard:
    """What is used of a guard, by its pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def tell(self, message: bytes) -> None:
        TOLD.append(message)


TOLD: list[bytes] = []
GUARD = Guard(os.getpid())  # it lives


class PlayedClients:
    """The clients of a job, one of whom may ask to stop it during a certain wait."""

    def __init__(self, stops_in: int = 0) -> None:
        self._stops_in = stops_in
        self.waits = 0
        self.ended: list[tuple[int, str]] = []

    def wait(self, seconds: float) -> str:
        self.waits += 1
        restarts.time.sleep(seconds)
        return "popctl (PID 7)" if self.waits == self._stops_in else ""

    def end(self, exit_code: int, cause: str) -> None:
        self.ended.append((exit_code, cause))


class Played:
    """The steps of a run, with attempts that end as a list says."""

    def __init__(
        self, ends: Sequence[End | Exception], refusals: Sequence[Exception | None] = ()
    ) -> None:
        # How the attempts after the first end.
        self.ends = list(ends)
        self.refusals = list(refusals)
        self.calls: list[object] = []
        # Why each attempt had to be started.
        self.changes: list[str] = []
        # How long each attempt but the first takes.
        self.attempt_s = 0.0
        self.failures: list[int] = []
        self.times_left: list[float] = []
        self.said: list[str] = []
        self.undone: list[str] = []
        self.shown: list[str] = []
        # The results that are written where no attempt has the last word.
        self.recorded: list[tuple[int, str]] = []
        resource = Resource(
            make=lambda: None,
            end_action=RemovePath(b"/nowhere/of/this/test"),
            undo=self.undo,
        )
        self.job = Job(
            control="",
            mark="",
            mpirun=[],
            mpirun_environment={},
            specs=[],
            host_names=[],
            descriptor_limits=(1, 1),
            job_resources=[resource],
        )

    def undo(self) -> bool:
        self.undone.append("the job")
        return True

    def make_search(self, mark: str, warn: object) -> None: ...

    def make_growth(self, plan: object, job: object, warn: object) -> None: ...

    def prepare_next(
        self, number: int, num_failures: int, last: Successor, time_left_s: float
    ) -> Any:
        self.calls.append((number, *last.lost_hosts))
        self.failures.append(num_failures)
        self.times_left.append(time_left_s)
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal
        return "plan", self.job

    def can_do_without(self, lost: Collection[str]) -> bool:
        return "spare" in lost

    def undo_growth(self, growth: object) -> None:
        self.calls.append("undo the growth")

    def attempt(
        self,
        job: Job,
        guard: Guard,
        plan: Any,
        *,
        restarts_left: int,
        clients: PlayedClients | None,
        make_search: object,
        make_growth: object,
        changed: str,
    ) -> End:
        assert (guard, plan) == (GUARD, "plan")
        self.calls.append("run" if restarts_left else "last")
        self.changes.append(changed)
        if self.attempt_s:
            restarts.time.sleep(self.attempt_s)
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def cancel(self, guard: Guard) -> None:
        self.undone.append("the devices")

    def run(self, most: int, job: Job | None = None, **first: Any) -> int:
        context: Any = SimpleNamespace(
            caller_environ={},
            phase_line=SimpleNamespace(show=self.shown.append),
            settings={"max-restarts": most},
            log=Log(0, self.said.append),
            recorder=SimpleNamespace(
                wait_for_restart=lambda seconds: None,
                refuse=lambda code, cause, **_: self.recorded.append((code, cause)),
            ),
        )
        self.ends.insert(0, failed(**first))
        guard: Any = GUARD
        plan: Any = "plan"
        preparation: Any = self
        attempts = Restarts(context, preparation, self.attempt)
        return attempts.run(job or self.job, guard, plan, None)


def failed(**fields: Any) -> End:
    """Return the end of an attempt that has failed, and that another one follows."""
    successor = {"guard": GUARD, "clients": PlayedClients(), **fields}
    return Verdict(exit_code=3, sentence=FAILED), Successor(**successor)


LAST_FAILED = Verdict(exit_code=3, sentence=FAILED), None
SUCCEEDED = Verdict(exit_code=0), None


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Let the waits take no time, and return how long they would have been."""
    slept: list[float] = []
    now = [1000.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(restarts, "time", clock)
    monkeypatch.setattr(restarts, "LOOK_S", inf)
    handlers = {n: signal.getsignal(n) for n in restarts.HANDLED_SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    TOLD.clear()
    yield slept
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_the_waits_double_up_to_a_minute(waits: list[float]) -> None:
    played = Played([*(failed() for _ in range(8)), LAST_FAILED])

    assert played.run(9) == 3
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert played.shown[-3:] == [
        "waiting to start the job again",
        "checking the hosts",
        "",
    ]
    assert played.undone == []  # by the last attempt


def test_each_attempt_is_prepared_with_its_number_and_the_lost_hosts() -> None:
    played = Played([failed(lost_hosts=frozenset(["h1"])), SUCCEEDED])

    assert played.run(2) == 0
    assert played.calls == [
        "run",
        (1,),
        "run",
        (2, "h1"),
        "last",
    ]
    assert played.said[-1] == (
        f"poprun: the attempts of the job:\n    attempt 0: {FAILED}\n"
        f"    attempt 1: {FAILED}\n    attempt 2: succeeded\n"
    )


LOST_AT = 1000.0  # on the clock of waits()


@pytest.mark.parametrize(
    ("host", "may_run", "waited"),
    [
        # 1 second as after each failure; the hosts are reached before the rest.
        ("spare", False, [1, CLOSED_S - 1]),
        ("spare", True, [CUT_OFF_S]),
        ("needed", False, [CUT_OFF_S]),
    ],
)
def test_after_the_loss_of_a_host_its_instances_have_ended_first(
    host: str, may_run: bool, waited: list[float], waits: list[float]
) -> None:
    played = Played([SUCCEEDED])
    played.run(1, lost_hosts=frozenset([host]), may_run=may_run, lost_at=LOST_AT)

    assert waits == waited


@pytest.mark.parametrize(
    ("ended_after", "waited"), [(0.5, [0.5, 1.0]), (1.5, [0.5]), (2.5, [])]
)
def test_the_waits_after_the_loss_of_a_host_count_from_the_loss(
    ended_after: float, waited: list[float], waits: list[float]
) -> None:
    played = Played([SUCCEEDED])
    lost_at = LOST_AT - ended_after
    played.run(1, lost_hosts=frozenset(["spare"]), lost_at=lost_at)

    assert waits == waited
    when = f"in {waited[0]} s" if len(waited) == 2 else "now"
    said = f"poprun: the job will be started again {when}: restart 1 of at most 1.\n"
    assert said in played.said


def test_the_ipus_of_a_lost_host_are_released_once_its_instances_have_ended(
    waits: list[float],
) -> None:
    played = Played([SUCCEEDED])
    devices: Any = SimpleNamespace(
        detach_all=lambda: played.calls.append(("detach", sum(waits))),
        live_with=lambda pid: None,
    )
    played.job = restarts.replace(played.job, devices=devices)
    played.run(1, played.job, lost_hosts=frozenset(["spare"]), lost_at=LOST_AT)

    assert ("detach", CLOSED_S) in played.calls


def test_a_host_that_does_not_answer_is_tried_again_after_a_longer_wait(
    waits: list[float],
) -> None:
    away = HostUnreachableError("The host b cannot be used.")
    played = Played([SUCCEEDED], [away, away, None])

    assert played.run(3) == 0
    assert waits == [1, 2, 4]
    assert played.said.count("poprun: error: The host b cannot be used.\n") == 2


def test_a_host_that_is_lost_before_the_start_is_tried_again_as_well() -> None:
    lost = HostUnreachableError("The host b was lost before the job started.")
    played = Played([lost, SUCCEEDED])

    assert played.run(2) == 0
    assert played.calls == ["run", (1,), "run", (2,), "last"]
    assert f"    attempt 1: {lost}\n    attempt 2: succeeded\n" in played.said[-1]


def test_a_host_that_is_lost_before_the_last_start_ends_the_job() -> None:
    lost = HostUnreachableError("The host b was lost before the job started.")
    played = Played([lost])

    assert played.run(1) == 125
    assert played.undone == ["the job", "the devices"]


def test_a_restart_may_wait_for_ipus_as_long_as_the_timeout_lasts() -> None:
    played = Played([failed(), SUCCEEDED])
    played.job = restarts.replace(played.job, timeout=10.0)

    assert played.run(2, played.job) == 0
    assert played.times_left == [9, 7]


GROWTH = HostsAvailable(
    hosts=("a", "b"), new_hosts=("b",), num_running=2, num_instances=4
)
GROWN = "The job grows from 2 to 4 instances, because the host b can be used."


def grows(**fields: Any) -> End:
    """Return the end of an attempt that was stopped for another host."""
    successor = {"guard": GUARD, "clients": PlayedClients(), "growth": GROWTH, **fields}
    verdict = Verdict(exit_code=125, sentence=GROWN, grows=True)
    return verdict, Successor(**successor, has_failed=False)


def test_a_growth_is_followed_at_once_and_does_not_count(waits: list[float]) -> None:
    played = Played([grows(), failed(), grows(), SUCCEEDED])

    assert played.run(3) == 0
    assert waits == [1, 2]
    assert played.failures == [1, 1, 2, 2]
    assert played.changes == ["", FAILED, GROWN, FAILED, GROWN]
    assert played.calls == ["run", (1,), "run", (2,), "run", (3,), "run", (4,), "run"]
    assert f"    attempt 1: {GROWN}\n    attempt 2: {FAILED}" in played.said[-1]


def test_a_job_whose_restarts_are_used_up_still_grows() -> None:
    played = Played([grows(), LAST_FAILED])

    assert played.run(1) == 3
    assert played.calls == ["run", (1,), "last", (2,), "last"]


def test_hosts_that_cannot_be_used_after_all_are_left_out_and_do_not_count(
    waits: list[float],
) -> None:
    away = HostUnreachableError("The host b has no program.")
    played = Played([grows(), SUCCEEDED], [None, away, None])

    assert played.run(1) == 0
    undone = "undo the growth"
    assert played.calls == ["run", (1,), "last", (2,), undone, (3, "b"), "last"]
    assert played.failures == [1, 1, 1]
    assert waits == [1]  # before the first restart: no instance was on the new host


def test_a_growth_that_fails_before_the_start_is_undone() -> None:
    lost = HostUnreachableError("The host b was lost before the job started.")
    played = Played([grows(), lost, SUCCEEDED])

    assert played.run(1) == 0
    undone = "undo the growth"
    assert played.calls == ["run", (1,), "last", (2,), "last", undone, (3, "b"), "last"]


def test_a_growth_for_which_the_timeout_leaves_no_time_is_a_timeout() -> None:
    played = Played([grows()])
    played.job = restarts.replace(played.job, timeout=11.0)
    played.attempt_s = 5.0

    assert played.run(3, played.job) == 124
    assert played.recorded == [(124, "--timeout leaves no time.")]


def test_a_signal_after_a_growth_ends_the_job() -> None:
    played = Played([grows(stopped_by=signal.SIGTERM)])

    assert played.run(3) == 143
    assert played.undone == ["the job", "the devices"]
    assert "Stopped by SIGTERM before attempt 2 was started." in played.said[-1]


def test_a_host_that_stays_away_ends_the_job_which_is_undone() -> None:
    away = HostUnreachableError("The host b cannot be used.")
    played = Played([], [away, away])

    assert played.run(2) == 125
    assert played.said[-1].endswith(
        "    attempt 2: not started: The host b cannot be used.\n"
    )
    assert played.undone == ["the job", "the devices"]
    assert len(TOLD) == 1  # the guard has nothing to undo any more


@pytest.mark.parametrize(
    ("error", "exit_code", "why"),
    [
        (OptionError("It is not valid."), 2, "It is not valid."),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left"),
        (MemoryError(), 1, "MemoryError()"),
    ],
)
def test_what_no_restart_mends_is_an_error_and_the_job_is_undone(
    error: Exception, exit_code: int, why: str
) -> None:
    played, clients = Played([], [error]), PlayedClients()

    with pytest.raises(type(error)):
        played.run(9, clients=clients)
    assert played.undone == ["the job", "the devices"]
    assert len(TOLD) == 1  # the guard has nothing to undo any more
    [(code, cause)] = clients.ended
    assert (code, cause.startswith(why)) == (exit_code, True)
    assert f"    attempt 1: not started: {why}" in played.said[-1]
    assert played.shown[-1] == ""


def test_a_restart_that_the_timeout_leaves_no_time_for_is_none(
    waits: list[float],
) -> None:
    played = Played([failed(), failed()])
    job = restarts.replace(played.job, timeout=6.5)
    played.job = job

    assert played.run(9, job) == 3
    assert waits == [1, 2]  # and 4 more do not fit
    assert played.said[-1].endswith("not started: --timeout leaves no time.\n")
    assert played.undone == ["the job", "the devices"]
    assert played.recorded == []  # the last attempt says how the job ended


def test_the_result_tells_of_a_host_that_stays_away_until_the_timeout() -> None:
    away = "The host b cannot be used."
    played = Played([], [HostUnreachableError(away)])

    assert played.run(9, restarts.replace(played.job, timeout=2.5)) == 125
    assert played.recorded == [(125, away)]


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [(signal.SIGTERM, "SIGTERM", 143), (restarts.CALLER_INTERRUPT, "SIGINT", 130)],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_signal_during_the_wait_ends_and_undoes_the_job(
    monkeypatch: pytest.MonkeyPatch, is_late: bool, number: int, name: str, code: int
) -> None:
    def stop(*_: object) -> None:
        # pytest-xdist has a thread that would take it for the process.
        signal.pthread_kill(threading.get_ident(), number)

    played = Played([])
    if is_late:
        # It came when the last attempt was over, in which signals are blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, restarts.HANDLED_SIGNALS)
        stop()
    else:
        monkeypatch.setattr(restarts.time, "sleep", stop)

    assert played.run(9) == code
    assert played.calls == ["run"]
    assert played.undone == ["the job", "the devices"]
    assert played.said[-1].endswith(
        f"attempt 1: not started: Stopped by {name} before attempt 1 was started.\n"
    )


def test_a_guard_that_has_died_is_replaced_by_one_that_knows_what_to_undo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = Guard(4_200_000)
    monkeypatch.setattr(restarts, "start_guard", lambda environ: GUARD)
    played = Played([SUCCEEDED])

    assert played.run(1, guard=dead) == 0
    assert "guard was killed" in played.said[1]
    assert b"/nowhere/of/this/test" in TOLD[0]


def test_a_client_stops_a_job_that_waits_for_its_next_attempt() -> None:
    clients = PlayedClients(stops_in=1)
    played = Played([])

    assert played.run(3, clients=clients) == 130

    why = "Stopped by popctl (PID 7) before attempt 1 was started."
    assert clients.ended == [(130, why)]
    assert played.calls == ["run"]
    assert played.undone == ["the job", "the devices"]
    assert why in played.said[-1]
