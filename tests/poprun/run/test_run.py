"""The order of the stages of a run, and what is given back when one of them fails."""

import errno
import os
import signal
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from poprun import run
from poprun.errors import LaunchError, OptionError, PoprunError, ProgramNotFoundError
from poprun.job.reservation import DeviceReservation
from poprun.job.values import Job
from poprun.options import grammar
from poprun.options.programs import Program
from poprun.options.settings import Settings, resolve_settings
from poprun.plan.values import Plan, Request
from poprun.result.recorder import Recorder
from poprun.result.verdict import Verdict
from poprun.run import Stages
from poprun.run.attempt import Successor
from poprun.run.context import RunContext
from poprun.run.restarts import StoppedError
from poprun.vipu.errors import NoSpaceError
from poprun.wire.events import HostsAvailable

ENVIRON = {"PATH": "/usr/bin:/bin", "MINE": "1", "POPDIST_JOB_ID": "outer"}
GUARD: Any = Mock(pid=os.getpid())  # it lives
JOB: Any = object()


class Devices:
    """Devices of a job whose release the test sees."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def with_devices(self, job: Any) -> Any:
        return job

    def cancel(self, tell_guard: Any) -> None:
        assert tell_guard is GUARD.tell
        self.calls.append("cancel")

    lines = (("I", "The devices."),)
    partition = None


class Played:
    """Stages that note their calls; one of them may fail."""

    def __init__(self, failure: dict[str, BaseException] | None = None) -> None:
        self.calls: list[str] = []
        self.failure = failure or {}
        self.environ: list[Mapping[str, str]] = []

    def stages(self) -> Stages:
        return Stages(
            preview=self.preview,
            reserve=self.reserve,
            refusal_of_more=lambda request, environ: "",
            prepare=self.prepare,
            run_attempt=self.run_attempt,
        )

    def note(self, name: str, environ: Mapping[str, str]) -> None:
        self.calls.append(name)
        self.environ.append(environ)
        if name in self.failure:
            raise self.failure[name]

    def preview(self, request: Request, environ: Mapping[str, str]) -> Any:
        self.note("preview", environ)
        return None, "There are none today."

    def reserve(self, request: Request, environ: Mapping[str, str], *_: Any) -> Any:
        assert request.partition_options is not None
        self.note("reserve", environ)
        return Devices(self.calls)

    def prepare(self, plan: Plan, files: list[str], context: RunContext) -> Any:
        # It has been granted no partition.
        assert plan.assignments[0].variables["POPDIST_OFFLINE_MODE"] == "1"
        assert files == ["/usr/bin/true"] * 2
        self.note("prepare", context.environ)
        return JOB

    def run_attempt(
        self, job: Any, guard: Any, plan: Any, *, context: RunContext, **_: Any
    ) -> tuple[Verdict, None]:
        assert (job, guard) == (JOB, GUARD)
        self.note("run_attempt", context.caller_environ)
        return Verdict(exit_code=7), None


def settings(*words: str) -> Settings:
    size = ("--num-instances", "2", "--num-replicas", "2", "--mpirun", "local")
    return resolve_settings(grammar.parse([*size, *words, "true"]).options, {})


def play(played: Played, *words: str, program: str = "true", guard: Any = GUARD) -> int:
    programs = [Program(argv=[program], instances=range(0))]
    return run.run(
        settings(*words),
        programs,
        guard,
        ENVIRON,
        Recorder([]),
        stages=played.stages(),
    )


def test_devices_are_reserved_then_the_job_is_described_and_run() -> None:
    played = Played()

    assert play(played) == 7
    assert played.calls == ["reserve", "prepare", "run_attempt"]


def test_a_job_inside_another_one_gets_nothing_of_that() -> None:
    played = Played()
    play(played)

    reserve, prepare, run_attempt = played.environ
    assert reserve["MINE"] == prepare["MINE"] == "1"
    assert "POPDIST_JOB_ID" not in reserve
    assert "POPDIST_JOB_ID" not in prepare
    # The streams of poprun itself are those of its caller.
    assert run_attempt is ENVIRON


@pytest.mark.parametrize("error", [LaunchError("full"), KeyboardInterrupt()])
def test_devices_of_a_job_that_cannot_be_described_are_given_back(
    error: BaseException,
) -> None:
    played = Played({"prepare": error})

    with pytest.raises(type(error)):
        play(played)
    assert played.calls == ["reserve", "prepare", "cancel"]


def test_a_job_without_devices_is_not_described() -> None:
    played = Played({"reserve": OptionError("no room")})

    with pytest.raises(OptionError):
        play(played)
    assert played.calls == ["reserve"]


@pytest.mark.parametrize(
    ("words", "program", "refusal"),
    [
        ((), "no-such-program", ProgramNotFoundError),
        (("--num-replicas", "3"), "true", PoprunError),
        (("--only-output-from-instance", "2"), "true", PoprunError),
    ],
)
def test_nothing_is_reserved_for_what_is_refused(
    words: tuple[str, ...], program: str, refusal: type[PoprunError]
) -> None:
    played = Played()

    with pytest.raises(refusal):
        play(played, *words, program=program)
    assert played.calls == []


def test_nothing_is_reserved_while_poprun_may_not_read_its_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("poprun.output.terminal.wait_until_readable", lambda _: False)
    played = Played()

    with pytest.raises(OptionError, match="which another job is using"):
        play(played, "--stdin", "all")
    assert played.calls == []


def test_a_dry_run_reserves_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    played = Played()

    assert play(played, "--dry-run", guard=None) == 0
    assert played.calls == ["preview"]
    shown = capfd.readouterr().out
    assert "instance 1 on localhost:" in shown
    assert shown.endswith("\npartition: none\n  There are none today.\n")


def test_devices_are_given_back_if_what_is_asked_for_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poprun.plan.show.write_text", lambda *_: errno.EIO)
    played = Played()

    assert play(played, "--print-topology=yes") == 74
    assert played.calls == ["reserve", "prepare", "cancel"]


PLAIN_JOB = Job(
    control="",
    mark="",
    mpirun=[],
    mpirun_environment={},
    specs=[],
    host_names=[],
    descriptor_limits=(1, 1),
    timeout=100.0,
)


class PlayedRestart(Played):
    """Stages whose first attempt fails, after which the job has other hosts.

    Args:
        hostfile: Names the hosts, with 2 slots first and 1 slot afterwards.
    """

    def __init__(self, hostfile: Path, failure: BaseException | None = None) -> None:
        super().__init__()
        self.hostfile = hostfile
        hostfile.write_text("localhost:2\n")
        self.later_failure = failure
        # The instances for which devices were asked for, and how long it may wait.
        self.reserved: list[tuple[int, float | None]] = []

    def reserve(self, request: Request, environ: Mapping[str, str], *_: Any) -> Any:
        devices = super().reserve(request, environ, *_)
        assert request.partition_options is not None
        wait_s = request.partition_options.wait_s
        self.reserved.append((request.topology.num_instances, wait_s))
        return devices

    def prepare(self, plan: Plan, files: list[str], context: RunContext) -> Any:
        self.note("prepare", context.environ)
        if self.later_failure is not None and plan.attempt.number:
            raise self.later_failure
        return PLAIN_JOB

    def run_attempt(
        self, job: Any, guard: Any, plan: Plan, *, context: RunContext, **_: Any
    ) -> Any:
        self.note("run_attempt", context.caller_environ)
        if plan.attempt.number:
            return Verdict(exit_code=0), None
        self.hostfile.write_text("localhost:1\n")
        clients = Mock(wait=lambda seconds: "")
        failed = Verdict(exit_code=7, sentence="It has failed.")
        return failed, Successor(guard=GUARD, clients=clients)


ELASTIC = ("--min-instances", "1", "--max-restarts", "1", "--offline-mode", "no")


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restart at once, and let no signal stay blocked after that."""
    monkeypatch.setattr("poprun.backoff.FIRST_RESTART_S", 0.0)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.usefixtures("no_wait")
def test_other_devices_are_waited_for_as_long_as_the_timeout_lasts(
    tmp_path: Path,
) -> None:
    played = PlayedRestart(tmp_path / "hosts")
    words = (*ELASTIC, "--hostfile", str(played.hostfile), "--wait-for-ipus")

    assert play(played, *words) == 0
    (first, first_wait), (second, second_wait) = played.reserved
    assert (first, first_wait, second) == (2, inf, 1)
    assert second_wait is not None
    assert 0 < second_wait <= 100


class PlayedGrowth(Played):
    """Stages whose first attempt is stopped to grow from 1 instance to 2."""

    def __init__(self, hostfile: Path, refusal: PoprunError | None = None) -> None:
        super().__init__()
        hostfile.write_text("localhost:1\n")
        self.hostfile, self.refusal = hostfile, refusal

    def reserve(self, request: Request, environ: Mapping[str, str], *_: Any) -> Any:
        self.calls.append(f"reserve {request.topology.num_instances}")
        if request.partition_number == 1 and self.refusal is not None:
            raise self.refusal
        number = request.partition_number
        return Mock(
            partition=None,
            lines=(),
            with_devices=lambda job: job,
            cancel=lambda tell: self.calls.append(f"cancel {number}"),
        )

    def prepare(self, plan: Plan, files: list[str], context: RunContext) -> Any:
        self.calls.append(f"prepare {len(plan.assignments)}")
        return PLAIN_JOB

    def run_attempt(
        self, job: Any, guard: Any, plan: Plan, *, context: RunContext, **_: Any
    ) -> Any:
        if plan.attempt.number:
            return Verdict(exit_code=0), None
        self.hostfile.write_text("localhost:2\n")
        growth = HostsAvailable(
            hosts=("localhost:2",), new_hosts=(), num_running=1, num_instances=2
        )
        clients = Mock(wait=lambda seconds: "")
        grown = Verdict(exit_code=125, sentence="The job grows.", grows=True)
        return grown, Successor(
            guard=GUARD, clients=clients, growth=growth, has_failed=False
        )


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize(
    ("refusal", "calls"),
    [
        (None, ["reserve 2", "cancel 0", "prepare 2"]),
        (NoSpaceError("There are too few."), ["reserve 2", "prepare 1"]),
    ],
)
def test_a_job_that_grows_keeps_its_devices_until_it_has_more(
    tmp_path: Path, refusal: PoprunError | None, calls: list[str]
) -> None:
    played = PlayedGrowth(tmp_path / "hosts", refusal)

    assert play(played, *ELASTIC, "--hostfile", str(played.hostfile)) == 0
    assert played.calls == ["reserve 1", "prepare 1", *calls]


@pytest.mark.usefixtures("no_wait")
def test_other_devices_are_given_back_if_the_job_is_stopped_before_it_has_them(
    tmp_path: Path,
) -> None:
    played = PlayedRestart(tmp_path / "hosts", StoppedError(signal.SIGTERM))

    assert play(played, *ELASTIC, "--hostfile", str(played.hostfile)) == 143
    assert played.calls == [
        *("reserve", "prepare", "run_attempt"),
        *("cancel", "reserve", "prepare", "cancel"),
    ]


def test_the_played_devices_are_like_the_real_ones() -> None:
    for name in ("with_devices", "cancel", "lines", "partition"):
        assert hasattr(DeviceReservation, name)
