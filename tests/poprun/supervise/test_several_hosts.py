"""A job on two hosts: the local one, with a guard and a shim that the test plays, and a
fake second one."""

import os
import signal
from collections.abc import Iterator

import pytest
from driven_jobs import Driven
from fake_frames import FramedSource
from fake_hosts import FakeHost, exited

from poprun.helpers.end_actions import RemovePath
from poprun.job.values import Resource
from poprun.output.stream_ends import DescriptorSource
from poprun.output.waiter import READ, Interest
from poprun.supervise.job_state import Cause, Phase, Reason
from poprun.wire import protocol
from poprun.wire.events import Connected, MpirunExited, Remains, ShimLost, Started

# Rank 0 runs here, the others there.
HERE, THERE = range(1), range(1, 3)


@pytest.fixture
def there() -> FakeHost:
    return FakeHost("there", THERE, ends_mpirun=False)


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch, there: FakeHost) -> Iterator[Driven]:
    driven = Driven(monkeypatch, 3, ranks=HERE, others=[there], grace=600.0)
    yield driven
    driven.close()


def run_there(there: FakeHost) -> None:
    there.play(*(Connected(rank=rank) for rank in THERE))
    there.play(*(Started(rank=rank, pid=100 + rank) for rank in THERE))


def calls(there: FakeHost) -> list[tuple[object, ...]]:
    return [call for call in there.calls if call[0] not in ("start", "stop_starting")]


def test_a_job_starts_and_ends_on_all_its_hosts(
    driven: Driven, there: FakeHost
) -> None:
    [shim] = driven.run(1)
    run_there(there)
    driven.turn(2)
    assert driven.supervisor._state.started == {0, 1, 2}

    shim.exit(0)
    shim.end()
    driven.turn()
    # The shims of a host wait for the instances of the others.
    assert shim.heard() == []
    for rank in THERE:
        there.play(*there.end(rank, 0, by_itself=True))
    driven.turn(2)
    assert shim.heard() == [(protocol.RELEASE, [])]
    driven.guard.say(protocol.MPIRUN_EXITED, 0)
    ended = driven.finish()

    assert ended.state.cause is None
    assert calls(there) == [
        ("note_end", 0),
        ("note_end", 1),
        ("note_end", 2),
        ("release",),
        ("finish_host",),
        ("close",),
    ]


def test_a_shim_of_another_hosts_instance_is_refused_here(driven: Driven) -> None:
    driven.run(1)

    assert driven.shim(1).is_cut_off()
    assert driven.supervisor._state.connected == {0}


@pytest.mark.parametrize("is_here", [True, False])
def test_a_failure_on_one_host_stops_the_instances_of_the_other(
    driven: Driven, there: FakeHost, *, is_here: bool
) -> None:
    [shim] = driven.run(1)
    run_there(there)
    driven.turn(2)

    if is_here:
        shim.exit(3 << 8)
    else:
        there.play(exited(2, 3 << 8))
    driven.turn()

    cause = Cause(reason=Reason.FAILED, rank=0 if is_here else 2)
    assert driven.supervisor._state.cause == cause
    assert ("signal", signal.SIGTERM) in there.calls
    assert shim.heard() == [(protocol.SIGNAL, [b"15"])]


def test_a_shim_that_is_lost_there_is_the_cause_of_mpiruns_end(
    driven: Driven, there: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven.run(1)
    run_there(there)
    driven.turn(2)

    # The agent there knows of it when mpirun's end is known here.
    monkeypatch.setattr(there, "take_in_losses", lambda: there.emit(ShimLost(rank=2)))
    driven.guard.say(protocol.MPIRUN_EXITED, 9 << 8)
    driven.turn()

    assert driven.supervisor._state.cause == Cause(reason=Reason.SHIM_LOST, rank=2)
    assert driven.told.index(ShimLost(rank=2)) < driven.told.index(
        MpirunExited(status=9 << 8)
    )


def resource(undone: list[str]) -> Resource:
    """Return something that is undone here or, failing that, by an end action."""

    def undo() -> bool:
        undone.append("undone")
        return True

    return Resource(make=lambda: None, end_action=RemovePath(b"/no/path"), undo=undo)


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_the_guard_need_not_undo_is_undone_when_each_host_is_clean(
    monkeypatch: pytest.MonkeyPatch, there: FakeHost, *, is_clean: bool
) -> None:
    undone: list[str] = []
    driven = Driven(
        monkeypatch, 3, ranks=HERE, others=[there], job_resources=[resource(undone)]
    )
    [shim] = driven.run(1)
    run_there(there)
    shim.exit(0)
    shim.end()
    there.is_clean = is_clean
    if not is_clean:
        there.play(Remains(pid=7, user=0, command="sudo", host=there.name))
    for rank in THERE:
        there.play(*there.end(rank, 0, by_itself=True))
    driven.turn(6)
    driven.guard.say(protocol.MPIRUN_EXITED, 0)

    ended = driven.finish()

    assert undone == (["undone"] if is_clean else [])
    remaining = [e for e in ended.events if isinstance(e, Remains)]
    assert remaining == (
        [] if is_clean else [Remains(pid=7, user=0, command="sudo", host="there")]
    )
    driven.close()


def test_a_host_is_clean_when_its_own_instances_are(
    driven: Driven, there: FakeHost
) -> None:
    [shim] = driven.run(1)
    assert not driven.host.is_clean

    shim.exit(0)
    shim.end()
    driven.turn()
    assert driven.host.is_clean

    shim.say(protocol.REMAINS, 7, 0, b"sudo")
    driven.turn()
    assert not driven.host.is_clean
    assert driven.told[-1] == Remains(pid=7, user=0, command="sudo", host="here")


def test_each_host_shows_the_stacks_of_its_own_instances(
    driven: Driven, there: FakeHost
) -> None:
    [shim] = driven.run(1)
    run_there(there)
    driven.turn(2)

    driven.signal(signal.SIGQUIT)
    assert (protocol.SHOW_STACKS, [b"0"]) in shim.heard()
    shim.say(protocol.STACKS, b"0")
    driven.turn(5)

    assert [call[1:] for call in there.calls if call[0] == "show_stacks"] == [
        (1, 0),
        (2, 0),
    ]
    assert driven.supervisor._state.phase is Phase.STOPPING


def test_output_of_both_hosts_is_shown(driven: Driven, there: FakeHost) -> None:
    [shim] = driven.run(1)
    run_there(there)
    stream, program = os.pipe()
    there.streams.open(DescriptorSource(stream), 1, "stdout")
    os.write(program, b"from there\n")
    os.close(program)
    driven.turn(2)
    os.write(shim.writers["stdout"], b"from here\n")
    driven.turn()

    assert driven.output() == (b"from there\nfrom here\n", b"")


def test_frames_of_another_host_are_shown_to_their_end_after_the_job(
    driven: Driven, there: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    [shim] = driven.run(1)
    run_there(there)
    source = FramedSource()
    there.streams.open(source, 1, "stdout")
    source.receive(b"while it runs\n")
    driven.turn()
    assert driven.output() == (b"while it runs\n", b"")

    shim.exit(0)
    shim.end()
    for rank in THERE:
        there.play(*there.end(rank, 0, by_itself=True))
    driven.turn(6)
    driven.guard.say(protocol.MPIRUN_EXITED, 0)
    connection, far_end = os.pipe()
    os.write(far_end, b".")

    def receive() -> None:
        # All instances have ended, and the output is waited for.
        if driven.supervisor._is_over:
            os.read(connection, 1)
            source.receive(b"the last")
            source.receive_end()

    interest = Interest(connection, READ, receive)
    monkeypatch.setattr(there, "interests", lambda now: iter([interest]))
    driven.finish()

    assert driven.output() == (b"while it runs\nthe last", b"")
    for descriptor in (connection, far_end):
        os.close(descriptor)


def test_the_loop_waits_for_the_end_of_what_is_left_on_another_host(
    driven: Driven, there: FakeHost
) -> None:
    [shim] = driven.run(1)
    run_there(there)
    shim.exit(0)
    shim.end()
    for rank in THERE:
        there.play(*there.end(rank, 0, by_itself=True))
    driven.turn(6)
    driven.guard.say(protocol.MPIRUN_EXITED, 0)
    remains = Remains(pid=7, user=0, command="sudo", host="there")
    there.last_events = [remains]

    ended = driven.finish()

    assert there.finished
    assert ended.events[-1] == remains
