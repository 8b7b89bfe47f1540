"""The local host with its mpirun and its loop; the test plays guard and shims."""

import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from driven_jobs import LIMIT_S, MPIRUN_PID, Driven, Shim, part_of

from poprun.host import local_host
from poprun.host.local_host import LocalHost
from poprun.job.values import Job
from poprun.output import waiter
from poprun.supervise.job_state import Cause, Phase, Reason
from poprun.wire import protocol
from poprun.wire.events import (
    Clean,
    Connected,
    Event,
    Exited,
    Interrupted,
    MpirunExited,
    MpirunRefused,
    MpirunStarted,
    Refused,
    ShimLeft,
    ShimLost,
    Started,
)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    """A job of two instances without a grace."""
    driven = Driven(monkeypatch, 2, grace=0.0)
    yield driven
    driven.close()


SIGNAL_TERM = (protocol.SIGNAL, [b"15"])
KILL, RELEASE = (protocol.KILL, []), (protocol.RELEASE, [])


def test_the_guard_is_told_of_the_job_before_it_is_to_start_mpirun(two: Driven) -> None:
    assert two.guard.heard() == [
        (protocol.REPORT_TO, []),
        (protocol.WATCH, []),
        (
            protocol.START,
            [
                *(b"0", b"POPDIST_JOB_ID=abc", b"0", b"4"),
                *(b"/bin/mpirun", b"-n", b"2", b"shim", b"HOME=/root"),
            ],
        ),
    ]


def test_a_job_goes_from_mpirun_by_its_shims_to_its_end(two: Driven) -> None:
    two.guard.say(protocol.MPIRUN_STARTED, MPIRUN_PID, 1)
    two.turn()
    shims = [two.shim(1), two.shim(0)]

    assert [shim.heard() for shim in shims] == [
        [(protocol.HOLD, [b""]), (protocol.SPEC, [b"spec 1"])],
        [(protocol.HOLD, [b""]), (protocol.SPEC, [b"spec 0"])],
    ]
    # What the kernel kills mpirun with must not be closed before the shims end.
    assert [len(shim.channel.descriptors) for shim in shims] == [1, 1]
    for shim in shims:
        shim.start()
    os.write(shims[0].writers["stdout"], b"from 1\n")
    os.write(shims[1].writers["stderr"], b"from 0\n")
    two.turn(2)
    assert two.output() == (b"from 1\n", b"from 0\n")

    for shim in shims:
        shim.exit(0)
        shim.end()
    two.turn()
    assert [shim.heard() for shim in shims] == [[RELEASE]] * 2
    two.guard.say(protocol.MPIRUN_EXITED, 0)
    ended = two.finish()

    assert two.guard.heard()[-1] == (protocol.FINISH, [])
    assert ended.state.phase is Phase.OVER
    assert (ended.state.cause, ended.mpirun_status) == (None, 0)
    assert ended.events == two.told
    assert [event for event in ended.events if not isinstance(event, Exited)] == [
        MpirunStarted(pid=MPIRUN_PID),
        Connected(rank=1),
        Connected(rank=0),
        Started(rank=1, pid=1001, cpus=(0, 1)),
        Started(rank=0, pid=1000, cpus=(0, 1)),
        Clean(rank=1, left_behind=0),
        Clean(rank=0, left_behind=0),
        MpirunExited(status=0),
    ]


def test_what_was_written_before_the_end_is_shown_in_full(two: Driven) -> None:
    shims = two.run(2)
    os.write(shims[0].writers["stdout"], b"a line and no")
    for shim in shims:
        shim.exit(0)
        shim.end()
    two.guard.say(protocol.MPIRUN_EXITED, 0)
    two.finish()

    assert two.output() == (b"a line and no", b"")


def test_a_failure_stops_the_others_which_are_killed_after_the_grace(
    two: Driven,
) -> None:
    failing, other = two.run(2)

    failing.exit(3 << 8)
    failing.end()
    two.turn(2)

    assert other.heard() == [SIGNAL_TERM, KILL]
    other.exit(signal.SIGKILL, by=protocol.BY_POPRUN)
    other.end()
    two.guard.say(protocol.MPIRUN_EXITED, 0)
    ended = two.finish()
    assert ended.state.cause == Cause(reason=Reason.FAILED, rank=0)
    exits = [(e.rank, e.status, e.by_itself) for e in two.told if isinstance(e, Exited)]
    assert exits == [(0, 3 << 8, True), (1, signal.SIGKILL, False)]


def test_a_shim_that_ends_after_its_release_has_left(two: Driven) -> None:
    shims = two.run(2)
    two.host.tell(protocol.RELEASE)

    shims[1].channel.close()
    two.turn()

    assert two.told == [ShimLeft(rank=1)]


def test_a_lost_shim_is_the_cause_even_if_mpirun_has_ended_of_it_meanwhile(
    two: Driven,
) -> None:
    shims = two.run(2)

    # Both are there at once when poprun comes to look, on a busy machine.
    shims[1].channel.close()
    two.guard.say(protocol.MPIRUN_EXITED, 9 << 8)
    two.turn()

    assert two.told[:2] == [ShimLost(rank=1), MpirunExited(status=9 << 8)]
    assert two.supervisor._state.cause == Cause(reason=Reason.SHIM_LOST, rank=1)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_of_shims_that_are_lost_together_the_first_one_is_the_cause(
    monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    driven = Driven(monkeypatch, 3, grace=0.0)
    try:
        shims = driven.run(3)

        # hydra kills the others of one that is killed, and poprun comes to look later.
        for rank in order:
            shims[rank].say(protocol.STACKS, 0)  # unread when the connection is closed
            shims[rank].channel.close()
        driven.guard.say(protocol.MPIRUN_EXITED, 9 << 8)
        driven.turn()

        assert driven.told[:3] == [ShimLost(rank=rank) for rank in order]
        assert driven.supervisor._state.cause == Cause(
            reason=Reason.SHIM_LOST, rank=order[0]
        )
    finally:
        driven.close()


def test_shims_that_go_while_poll_looks_are_lost_in_the_order_of_time(
    two: Driven,
) -> None:
    shims = two.run(2)

    # poll has looked at the epoll before the first one went.
    shims[1].channel.close()
    shims[0].channel.close()
    two.host.control._on_ready(next(iter(two.host.control._known)))

    assert two.told[:2] == [ShimLost(rank=1), ShimLost(rank=0)]


def test_an_instance_that_failed_is_the_cause_even_if_mpirun_has_ended_meanwhile(
    two: Driven,
) -> None:
    failing, _ = two.run(2)

    failing.exit(3 << 8)
    two.guard.say(protocol.MPIRUN_EXITED, 3 << 8)
    two.turn()

    assert two.supervisor._state.cause == Cause(reason=Reason.FAILED, rank=0)


def test_an_interrupt_is_passed_on_and_the_second_one_kills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = Driven(monkeypatch, 1, grace=600.0)
    [shim] = driven.run(1)

    driven.signal(signal.SIGINT)
    assert shim.heard() == [(protocol.SIGNAL, [b"2"])]
    driven.signal(signal.SIGINT)
    assert shim.heard() == [KILL]

    assert driven.told == [Interrupted(signal=2), Interrupted(signal=2)]
    driven.close()


def test_user_signals_are_passed_on_and_stop_nothing(two: Driven) -> None:
    shims = two.run(2)

    two.signal(signal.SIGUSR1)
    two.signal(signal.SIGUSR2)

    passed_on = [(protocol.SIGNAL, [b"10"]), (protocol.SIGNAL, [b"12"])]
    assert [shim.heard() for shim in shims] == [passed_on] * 2
    assert two.supervisor._state.phase is Phase.RUNNING
    assert two.told == []


@pytest.mark.parametrize(
    ("rank", "key"), [(0, b"wrong"), (2, None), (1, None)], ids=["key", "rank", "twice"]
)
def test_what_does_not_prove_that_it_belongs_to_the_job_gets_nothing(
    two: Driven, rank: int, key: bytes | None
) -> None:
    two.shim(1)

    stranger = two.shim(rank, key)

    assert stranger.is_cut_off()
    assert two.supervisor._state.connected == {1}


def test_a_shim_that_comes_when_the_job_stops_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = Driven(monkeypatch, 2, grace=600.0)
    driven.shim(0).start()
    driven.turn()
    driven.signal(signal.SIGTERM)

    late = driven.shim(1)

    assert late.heard() == [(protocol.HOLD, [b""]), RELEASE]
    assert driven.told[-1] == Clean(rank=1, left_behind=0)
    driven.close()


def test_an_mpirun_that_cannot_be_executed_ends_the_job_in_words(two: Driven) -> None:
    two.guard.say(protocol.MPIRUN_REFUSED, errno.EACCES, b"")
    ended = two.finish()

    assert ended.mpirun_status == 127 << 8
    assert MpirunRefused(errno=errno.EACCES, call="") in ended.events
    assert ended.state.started == frozenset()


def test_a_program_that_cannot_be_executed_stops_the_job(two: Driven) -> None:
    one, other = two.run(1)[0], two.shim(1)

    other.heard()
    other.say(protocol.REFUSED, errno.ENOENT, b"/no/program", b"")
    two.turn(2)

    assert two.told[-1] == Refused(rank=1, errno=errno.ENOENT, tried="/no/program")
    assert (
        two.supervisor._state.cause == Cause(reason=Reason.REFUSED, rank=1) or two.told
    )
    assert one.heard() == [SIGNAL_TERM, KILL]


def test_a_message_that_makes_no_sense_is_the_end_of_its_shim_alone(
    two: Driven,
) -> None:
    shims = two.run(2)

    shims[1].say(protocol.EXITED, b"many")
    two.turn()

    assert ShimLost(rank=1) in two.told
    assert shims[0].heard()[0] == SIGNAL_TERM
    assert shims[1].heard() == []
    assert shims[1].is_cut_off()


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("ends_by", Reason.TIMEOUT), ("starts_by", Reason.START_TIMEOUT)],
)
def test_a_limit_that_is_reached_stops_what_has_started(
    monkeypatch: pytest.MonkeyPatch, limit: str, reason: Reason
) -> None:
    driven = Driven(monkeypatch, 2, grace=600.0)
    shim = driven.shim(0)
    shim.start()
    driven.turn()
    over: dict[str, Any] = {limit: 0.0}
    driven.supervisor._state = replace(driven.supervisor._state, **over)
    driven.turn()
    while driven.supervisor._state.phase is Phase.TRACING:
        assert (protocol.SHOW_STACKS, [b"0"]) in shim.heard()
        shim.say(protocol.STACKS, b"0")
        driven.supervisor._turn(driven.supervisor._state.deadline)

    assert shim.heard()[-1] == SIGNAL_TERM
    assert driven.supervisor._state.cause == Cause(reason=reason)
    driven.close()


def test_an_end_of_the_future_counts_from_its_arrival(two: Driven) -> None:
    shims = two.run(2)

    shims[0].say(protocol.EXITED, 0, 1 << 62, 0, 0, 0, protocol.BY_ITSELF, 0)
    two.turn()

    [exited] = [event for event in two.told if isinstance(event, Exited)]
    assert exited.at_ns <= time.monotonic_ns()


# --- Shims that are started again.


class Again:
    """The host of instances 0 and 1, whose messages the test sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.job = Job(
            control=f"@poprun-test-{os.urandom(8).hex()}/key",
            descriptor_limits=resource.getrlimit(resource.RLIMIT_NOFILE),
            mark="MARK=1",
            mpirun=[],
            mpirun_environment={},
            specs=[protocol.pack(protocol.SPEC, b"%d" % rank) for rank in range(2)],
            host_names=["here"] * 2,
        )
        monkeypatch.setattr(local_host, "newcomers_spec", lambda spec: spec)
        self.host = LocalHost(
            part_of(self.job, range(2)), self.job.specs, Mock(), **options
        )
        self.host.listen()
        self.events: list[Event] = []
        stdin = Mock(descriptor_for=lambda rank: None)
        self.host.start(self.events.append, Mock(), stdin)

    def shim(self, rank: int) -> Shim:
        shim = Shim(self.job, rank)
        self.serve_until(lambda: Connected(rank=rank) in self.events)
        return shim

    def serve_until(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < limit
            waiter.serve(self.host.interests(0.0), time.monotonic() + 1)

    def lose(self, shim: Shim) -> None:
        shim.channel.close()
        self.serve_until(lambda: ShimLost(rank=shim.rank) in self.events)
        self.events.clear()


def test_a_shim_that_ended_before_it_connected_is_awaited_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again = Again(monkeypatch)

    again.host.tell(protocol.START_AGAIN, 1)
    assert again.events == []
    shim = again.shim(1)

    assert again.events == [Connected(rank=1)]
    assert shim.heard() == [(protocol.SPEC, [b"1"])]
    shim.channel.close()
    again.host.close()


def test_a_shim_that_no_launcher_can_start_again_is_lost_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again = Again(monkeypatch, start_shims=lambda: False)
    again.lose(again.shim(1))

    again.host.tell(protocol.START_AGAIN, 1)

    assert again.events == [ShimLost(rank=1, is_final=True)]
    again.host.close()
