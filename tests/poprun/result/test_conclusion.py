"""The report on a job and its exit code, from all that is known of its end."""

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.mpirun.openmpi import OpenMpi5
from poprun.output.stdin import Stdin
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.result.conclusion import judge_attempt, report_attempt
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.job_state import Cause, JobState, Reason
from poprun.wire.events import Event, Exited, MpirunStarted

STARTED = frozenset({0, 1})
SUCCESS = JobState(num_instances=2, started=STARTED)
FAILED = JobState(
    num_instances=2, started=STARTED, cause=Cause(reason=Reason.FAILED, rank=1)
)
KEPT_GOING = JobState(num_instances=2, started=STARTED)
N0, N1 = HOSTS = HostSpec(name="n0"), HostSpec(name="n1")
BEFORE = {N0: MemoryCounters(kills=5), N1: MemoryCounters(host_kills=7)}


class Output:
    """What the functions use of a router."""

    def __init__(
        self,
        *,
        failure: tuple[str, int] | None = None,
        lost: dict[str, int] | None = None,
        closed: bool = False,
        stderr: bytes = b"",
        was_last: bool = False,
    ) -> None:
        self.failure, self.lost, self.closed = failure, lost or {}, closed
        self._stderr, self._was_last = stderr, was_last

    def tail(self, rank: int) -> bytes:
        return self._stderr if rank == 1 else b""

    def is_in_sight(self, rank: int) -> bool:
        return self._was_last and rank == 1


def exited(rank: int, status: int, peak_kib: int = 0, at_ns: int = 1) -> Exited:
    return Exited(
        rank=rank,
        status=status,
        at_ns=at_ns,
        user_s=0.0,
        system_s=0.0,
        peak_kib=peak_kib,
        by_itself=True,
    )


def ends(
    output: Output,
    state: JobState = SUCCESS,
    events: Sequence[Event] = (),
    *,
    status: int = 0,
    words: bytes = b"",
    debug: bool = False,
    verbosity: int = 0,
    is_quiet: bool = False,
    memory: Mapping[HostSpec, MemoryCounters] | None = None,
) -> tuple[int, list[str]]:
    """Return the exit code and the lines on stderr.

    Args:
        memory: The counters of the hosts at the end, if they have changed.
    """
    said: list[str] = []
    program = SimpleNamespace(argv=())
    mpi = OpenMpi5(path="mpirun", version="5")
    facts = SimpleNamespace(is_own_host=True)
    assignments = [
        SimpleNamespace(host=host, program=program, facts=facts) for host in HOSTS
    ]
    request = SimpleNamespace(mpi=mpi, stdin=Stdin(), programs=())
    plan: Any = SimpleNamespace(request=request, assignments=assignments)
    ended = AttemptEnd(
        state=state, events=list(events), mpirun_status=status, mpirun_output=words
    )
    router: Any = output
    verdict = judge_attempt(ended, plan, router)
    report_attempt(
        verdict,
        ended,
        router,
        Log(verbosity, said.append, is_quiet=is_quiet),
        lambda rank: (memory or BEFORE)[HOSTS[rank]].since(BEFORE[HOSTS[rank]]),
        debug=debug,
    )
    return verdict.exit_code, [line.removesuffix("\n") for line in said]


ALL_WELL = exited(0, 0), exited(1, 0)
ONE_FAILED = exited(0, 0), exited(1, 3 << 8)


def test_a_job_that_went_well_needs_no_words() -> None:
    assert ends(Output(), events=ALL_WELL) == (0, [])


def test_the_cause_comes_last_with_the_code_of_the_instance() -> None:
    output = Output(stderr=b"bad\nno use\n")

    assert ends(output, FAILED, ONE_FAILED) == (
        3,
        [
            "poprun: the last lines of instance 1's stderr:\n    bad\n    no use",
            "poprun: error: Instance 1 on n1 exited with code 3; its stderr ends with "
            '"no use".',
        ],
    )


def test_a_quiet_report_has_the_cause_and_not_what_else_failed() -> None:
    output = Output(stderr=b"bad\nno use\n")
    events = exited(0, 4 << 8, at_ns=2), exited(1, 3 << 8)
    loud = [
        "poprun: the last lines of instance 1's stderr:\n    bad\n    no use",
        "poprun: also failed: instance 0 (exited with code 4).",
        "poprun: error: Instance 1 on n1 exited with code 3; its stderr ends with "
        '"no use".',
    ]

    assert ends(output, KEPT_GOING, events) == (3, loud)
    assert ends(output, KEPT_GOING, events, is_quiet=True) == (3, [loud[0], loud[2]])


def test_what_is_the_last_on_the_terminal_is_not_quoted() -> None:
    output = Output(stderr=b"no use\n", was_last=True)

    assert ends(output, FAILED, ONE_FAILED) == (
        3,
        [
            "poprun: error: Instance 1 on n1 exited with code 3; its stderr ends with "
            '"no use".'
        ],
    )


@pytest.mark.parametrize(
    ("status", "events", "code"),
    [
        (0, ALL_WELL, 0),
        (0, ONE_FAILED, 3),  # the supervisor of the instance has ended with 0
        (9 << 8, ALL_WELL, 9),
        (signal.SIGKILL, ALL_WELL, 137),
    ],
)
def test_the_log_has_the_code_that_mpirun_would_have_given(
    status: int, events: Sequence[Event], code: int
) -> None:
    state = FAILED if events == ONE_FAILED else SUCCESS
    said = ends(
        Output(), state, (MpirunStarted(pid=5), *events), status=status, verbosity=1
    )[1]

    assert said[0].endswith(
        f"POPRUN [I] mpirun (PID 5) terminated with exit code {code}"
    )


def test_an_mpirun_that_never_was_did_not_terminate() -> None:
    assert ends(Output(), events=ALL_WELL, verbosity=1)[1] == []


UNREAD = (
    "poprun: error: Output was lost: stdout was not read, so at least the "
    "last 7 bytes were not written."
)
FULL = (
    "poprun: error: Output was lost: stderr cannot be written: "
    f"{os.strerror(errno.ENOSPC)}. The instances were not stopped because of that."
)
CAUSE = "poprun: error: Instance 1 on n1 exited with code 3."


@pytest.mark.parametrize(
    ("output", "failed", "code", "said"),
    [
        pytest.param({"lost": {"stdout": 7}}, False, 74, [UNREAD], id="unread"),
        pytest.param({"lost": {"stdout": 7}}, True, 3, [UNREAD, CAUSE], id="both"),
        pytest.param({"failure": ("stderr", 28)}, False, 74, [FULL], id="full"),
        pytest.param({"failure": ("stderr", 28)}, True, 3, [FULL, CAUSE], id="full-3"),
        pytest.param({"closed": True}, False, 141, [], id="closed"),
        pytest.param({"closed": True}, True, 3, [CAUSE], id="closed-and-failed"),
    ],
)
def test_output_that_was_lost_is_told_and_counts_for_less_than_a_failure(
    output: dict[str, object], failed: bool, code: int, said: list[str]
) -> None:
    state, events = (FAILED, ONE_FAILED) if failed else (SUCCESS, ALL_WELL)

    assert ends(Output(**output), state, events) == (code, said)  # type: ignore[arg-type]


LIMIT = 256 << 20
NOT_SENT = ". poprun did not send it"
OF_A_PROCESS = (
    f"{NOT_SENT}, and the kernel has not killed any process because memory ran out. "
    "Another process sent it: a user's 'kill', a service, the batch system, or the "
    "program itself."
)
PERHAPS = (
    f"{NOT_SENT}. The kernel has killed 2 processes of that host because memory ran "
    "out, while the job ran: 'dmesg' names each."
)
STARVED = ": out of memory (the limit is 256 MiB, it had used 256 MiB)."


@pytest.mark.parametrize(
    ("kills_on_n0", "kills_on_n1", "counted_on_n1", "words"),
    [
        (0, 1, 7, STARVED),
        (0, 1, None, STARVED),
        (1, 0, 7, OF_A_PROCESS),
        (0, 0, 9, PERHAPS),
        (0, 0, None, f"{NOT_SENT}."),
    ],
)
def test_out_of_memory_is_the_cause_if_the_kernel_killed_on_the_instance_s_host(
    kills_on_n0: int, kills_on_n1: int, counted_on_n1: int | None, words: str
) -> None:
    after = {
        N0: MemoryCounters(kills=5 + kills_on_n0, limit=1 << 20),
        N1: MemoryCounters(kills=kills_on_n1, limit=LIMIT, host_kills=counted_on_n1),
    }
    events = exited(0, 0), exited(1, signal.SIGKILL, peak_kib=261_700)

    code, [cause] = ends(Output(), FAILED, events, memory=after)

    assert code == 137
    assert cause == f"poprun: error: Instance 1 on n1 was killed by SIGKILL{words}"


def test_another_signal_is_not_for_want_of_memory() -> None:
    events = exited(0, 0), exited(1, signal.SIGSEGV)

    assert ends(
        Output(), FAILED, events, memory={N1: MemoryCounters(kills=1, limit=LIMIT)}
    ) == (
        139,
        ["poprun: error: Instance 1 on n1 was killed by SIGSEGV."],
    )


@pytest.mark.parametrize("debug", [False, True])
def test_mpirun_s_output_is_shown_with_debug(debug: bool) -> None:
    code, said = ends(Output(), events=ALL_WELL, words=b"A note.\n", debug=debug)

    assert code == 0
    assert [line.partition("\n")[0] for line in said] == ["poprun: mpirun printed:"][
        :debug
    ]


def test_a_signal_s_exit_code_is_the_shell_s() -> None:
    cause = Cause(reason=Reason.INTERRUPTED, signal=signal.SIGTERM)
    state = JobState(num_instances=2, cause=cause)

    assert ends(Output(lost={"stdout": 7}), state) == (
        143,
        [UNREAD, "poprun: error: Stopped by SIGTERM."],
    )
