"""The supervisor's loop with hosts and an mpirun that have no processes."""

import os
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from fake_hosts import FakeHost, FakeMpirun, exited
from job_clients import make_clients

from poprun.helpers import own_process
from poprun.job.values import Job
from poprun.output.router import OutputRouter
from poprun.output.routes import Routes
from poprun.output.stdin import Stdin
from poprun.output.stream_ends import DescriptorSource
from poprun.output.waiter import Interest
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.drain import AFTER_FAILURE_S
from poprun.supervise.job_state import Cause, Phase, Reason
from poprun.supervise.supervisor import Supervisor
from poprun.wire.events import (
    CanReform,
    Clean,
    Connected,
    Event,
    Exited,
    FailedInFinalize,
    HostLost,
    HostsAvailable,
    Interrupted,
    MpirunExited,
    MpirunStarted,
    Refused,
    Rejected,
    ShimLost,
    Started,
)

KILLED = signal.SIGKILL
TERM, INT = signal.SIGTERM, signal.SIGINT


class FakeSearch:
    """A HostSearch without a process."""

    def __init__(self) -> None:
        self.looks = False
        self.num_ends = 0
        self.found: HostsAvailable | None = None

    def begin(self) -> None:
        self.looks = True

    def end(self) -> None:
        self.looks = False
        self.num_ends += 1

    def take(self) -> HostsAvailable | None:
        return self.found

    def interests(self, now: float) -> Sequence[Interest]:
        return ()

    def deadline(self, now: float) -> float:
        return inf

    def tick(self, now: float) -> None: ...


class Loop:
    """A supervisor, its fake host, and the descriptors around it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        size: int = 2,
        *,
        obeys: Sequence[int] = (),
        stdout: int | None = None,
        search: "FakeSearch | None" = None,
        **job: object,
    ) -> None:
        wake, self._signals = os.pipe()
        # The actions on signals belong to the process that runs the tests.
        monkeypatch.setattr(own_process, "wake_up_on", lambda *_: wake)
        self.output = os.memfd_create("stdout")
        router = OutputRouter(
            Routes(), stdout or self.output, os.memfd_create("stderr")
        )
        self.host = FakeHost("n0", range(size), obeys)
        self.mpirun = FakeMpirun(self.host.calls)
        self.events: list[Event] = []
        self.job = Job(
            control="@none/key",
            descriptor_limits=resource.getrlimit(resource.RLIMIT_NOFILE),
            mark="MARK=1",
            mpirun=["/bin/mpirun"],
            mpirun_environment={},
            specs=[b"spec"] * size,
            host_names=["here"] * size,
            **job,  # type: ignore[arg-type]
        )
        self.supervisor = Supervisor(
            self.job,
            self.mpirun,  # type: ignore[arg-type]
            [self.host],
            router,
            self.events.append,
            make_clients(size),
            search=search,  # type: ignore[arg-type]
        )
        self.supervisor.start()

    def run_all(self) -> None:
        """Let all instances run."""
        self.host.play(
            MpirunStarted(pid=1), *(Connected(rank=rank) for rank in self.host.ranks)
        )
        self.host.play(
            *(Started(rank=rank, pid=100 + rank) for rank in self.host.ranks)
        )

    def signal(self, number: int) -> None:
        os.write(self._signals, bytes([number]))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.supervisor._turn(time.monotonic())

    def reach(self, limit: str) -> None:
        """Let a time limit of the job be over from now on."""
        changed: dict[str, Any] = {limit: time.monotonic()}
        self.supervisor._state = replace(self.supervisor._state, **changed)

    def run(self) -> AttemptEnd:
        return self.supervisor.run()

    @property
    def sent(self) -> list[tuple[object, ...]]:
        """What the loop has sent to instances and mpirun."""
        kinds = ("signal", "kill", "release", "signal_mpirun")
        return [call for call in self.host.calls if call[0] in kinds]


def test_a_job_without_failures_goes_through_the_host_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    loop.run_all()
    loop.host.play(*loop.host.end(1, 0, by_itself=True))
    loop.host.play(*loop.host.end(0, 0, by_itself=True))

    ended = loop.run()

    assert ended.state.cause is None
    assert (ended.mpirun_status, ended.mpirun_output) == (0, b"what mpirun wrote")
    assert ended.events == loop.events
    names = [call for call in loop.host.calls if call[0] != "stop_starting"]
    assert names == [
        ("start",),
        ("report_to",),
        ("note_end", 1),
        ("note_end", 0),
        ("release",),
        ("finish_host",),
        ("finish", True),
        ("close",),
        ("close_mpirun",),
    ]


def test_clients_that_do_not_belong_to_the_job_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    loop.run_all()
    loop.host.play(*[Rejected(why="it sent no message")] * 1000)
    loop.turn(3)

    assert loop.events.count(Rejected(why="it sent no message")) == 1000
    assert not any(isinstance(e, Rejected) for e in loop.supervisor._events)


def test_a_failure_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, 3, obeys=[TERM], grace=600.0)
    loop.run_all()
    loop.host.play(*loop.host.end(1, 3 << 8, by_itself=True))

    ended = loop.run()

    assert ended.state.cause == Cause(reason=Reason.FAILED, rank=1)
    assert loop.sent == [("signal", TERM), ("release",)]
    stopped = [e.rank for e in loop.events if isinstance(e, Exited) and not e.by_itself]
    assert stopped == [0, 2]
    stop, told = (
        loop.host.calls.index(c) for c in (("stop_starting",), ("signal", TERM))
    )
    assert stop < told


def test_instances_that_ignore_the_signal_are_killed_after_the_grace_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, grace=0.2)
    loop.run_all()
    loop.turn(3)
    loop.host.play(*loop.host.end(0, 1 << 8, by_itself=True))
    began = time.monotonic()

    ended = loop.run()

    assert time.monotonic() - began >= 0.2
    assert loop.sent == [("signal", TERM), ("kill",), ("release",)]
    assert ended.state.cause == Cause(reason=Reason.FAILED, rank=0)


def test_the_grace_period_is_not_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, grace=600.0)
    loop.run_all()
    loop.host.play(*loop.host.end(0, 1 << 8, by_itself=True))

    loop.turn(10)

    assert loop.sent == [("signal", TERM)]


def test_with_keep_going_the_others_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, keep_going=True)
    loop.run_all()
    loop.host.play(*loop.host.end(0, 3 << 8, by_itself=True))
    loop.turn(5)
    assert loop.sent == []
    assert loop.host.alive == {1}

    loop.host.play(*loop.host.end(1, 0, by_itself=True))
    ended = loop.run()

    assert ended.state.cause is None
    assert loop.sent == [("release",)]


def test_the_second_interrupt_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, grace=600.0)
    loop.run_all()
    loop.turn(3)
    loop.signal(INT)
    loop.turn()
    assert loop.sent == [("signal", INT)]

    loop.signal(INT)
    ended = loop.run()

    assert loop.sent == [("signal", INT), ("kill",), ("release",)]
    assert ended.state.cause == Cause(reason=Reason.INTERRUPTED, signal=INT)
    assert [e for e in loop.events if isinstance(e, Interrupted)] == [
        Interrupted(signal=INT)
    ] * 2


def test_the_timeout_shows_stacks_of_each_instance_and_stops_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, obeys=[TERM], grace=600.0, timeout=600.0)
    loop.run_all()
    loop.turn(2)

    loop.reach("ends_by")
    ended = loop.run()

    assert ended.state.cause == Cause(reason=Reason.TIMEOUT)
    assert [call for call in loop.host.calls if call[0] == "show_stacks"] == [
        ("show_stacks", 0, 0),
        ("show_stacks", 1, 0),
    ]
    assert loop.sent == [("signal", TERM), ("release",)]


def test_the_start_timeout_stops_a_job_whose_instances_do_not_all_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, obeys=[TERM], grace=600.0, start_timeout=600.0)
    loop.host.play(MpirunStarted(pid=1), Connected(rank=0), Started(rank=0, pid=100))
    loop.turn()

    loop.reach("starts_by")
    ended = loop.run()

    assert ended.state.cause == Cause(reason=Reason.START_TIMEOUT)
    # mpirun has not started all instances, and is told not to.
    assert loop.sent == [("signal", TERM), ("release",), ("signal_mpirun", TERM)]


def test_what_has_come_before_a_limit_is_over_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, start_timeout=600.0)
    loop.host.play(MpirunStarted(pid=1), Connected(rank=0), Connected(rank=1))
    tick = loop.host.tick

    def stop_until_the_limit(now: float) -> None:
        # poprun has looked, and is stopped until the limit is over.
        monkeypatch.setattr(loop.host, "tick", tick)
        loop.host.play(*(Started(rank=rank, pid=100 + rank) for rank in range(2)))
        loop.reach("starts_by")

    monkeypatch.setattr(loop.host, "tick", stop_until_the_limit)
    loop.turn(3)

    assert loop.supervisor._state.phase is Phase.RUNNING
    assert loop.sent == []


def test_time_limits_of_a_host_are_not_over_before_it_has_been_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    ticks: list[float] = []
    reads: list[float] = []
    on_batch = loop.host._on_batch

    def read() -> None:
        # poprun may be stopped before this.
        reads.append(time.monotonic())
        on_batch()

    monkeypatch.setattr(loop.host, "_on_batch", read)
    monkeypatch.setattr(loop.host, "tick", ticks.append)
    loop.host.play(MpirunStarted(pid=1))
    loop.turn()

    assert ticks[0] <= reads[0]


def test_a_closed_stdout_stops_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    loop = Loop(monkeypatch, 1, obeys=[TERM], grace=600.0, stdout=writer)
    loop.run_all()
    loop.turn(3)
    stream, program = os.pipe()
    loop.host.streams.open(DescriptorSource(stream), 0, "stdout")
    os.close(reader)
    os.write(program, b"a line\n")
    os.close(program)

    ended = loop.run()

    assert ended.state.cause == Cause(reason=Reason.OUTPUT_CLOSED)
    assert loop.sent == [("signal", TERM), ("release",)]
    os.close(writer)


def test_output_that_comes_before_the_end_is_written_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, 1)
    loop.run_all()
    stream, program = os.pipe()
    loop.host.streams.open(DescriptorSource(stream), 0, "stdout")
    os.write(program, b"a line\n" * 5000)
    os.close(program)
    loop.host.play(*loop.host.end(0, 0, by_itself=True))

    loop.run()

    assert os.pread(loop.output, 1 << 20, 0) == b"a line\n" * 5000


def test_a_lost_shim_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, obeys=[TERM], grace=600.0)
    loop.run_all()
    loop.turn(3)
    loop.host.alive.discard(1)
    loop.host.play(ShimLost(rank=1))

    ended = loop.run()

    assert ended.state.cause == Cause(reason=Reason.SHIM_LOST, rank=1)
    assert ("note_end", 1) in loop.host.calls
    assert loop.sent == [("signal", TERM), ("release",)]


def test_a_program_that_cannot_start_stops_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, obeys=[TERM], grace=600.0)
    loop.host.play(
        MpirunStarted(pid=1),
        Connected(rank=0),
        Connected(rank=1),
        Started(rank=0, pid=100),
    )
    loop.host.play(Refused(rank=1, errno=2, tried="/no/program"))

    ended = loop.run()

    assert ended.state.cause == Cause(reason=Reason.REFUSED, rank=1)
    assert loop.host.alive == set()


def test_an_instance_that_failed_in_finalize_stops_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, obeys=[TERM], grace=600.0)
    loop.run_all()
    loop.host.play(FailedInFinalize(rank=1, status=1 << 8, at_ns=time.monotonic_ns()))

    ended = loop.run()

    assert ended.state.cause == Cause(reason=Reason.FAILED, rank=1)
    assert loop.sent == [("signal", TERM), ("release",)]


def test_events_of_one_turn_count_in_the_order_in_which_they_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, obeys=[TERM], grace=600.0)
    loop.run_all()
    loop.host.play(
        *loop.host.end(1, 3 << 8, by_itself=True), MpirunExited(status=9 << 8)
    )

    ended = loop.run()

    assert ended.state.cause == Cause(reason=Reason.FAILED, rank=1)


def test_an_mpirun_that_stays_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, 1)
    monkeypatch.setattr(loop.host, "_ends_mpirun", False)

    def kill_mpirun(number: int) -> None:
        loop.host.calls.append(("signal_mpirun", number))
        loop.host.play(MpirunExited(status=number))

    monkeypatch.setattr(loop.mpirun, "send_signal", kill_mpirun)
    loop.run_all()
    loop.host.play(*loop.host.end(0, 0, by_itself=True))

    ended = loop.run()

    assert ended.state.mpirun_hung
    assert ended.mpirun_status == KILLED
    assert loop.sent == [("release",), ("signal_mpirun", KILLED)]


def test_user_signals_and_sizes_reach_the_host_and_stop_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    loop.run_all()
    loop.signal(signal.SIGUSR1)
    loop.signal(signal.SIGWINCH)

    loop.turn(3)

    assert loop.sent == [("signal", signal.SIGUSR1)]
    assert loop.supervisor._state.phase is Phase.RUNNING


def test_the_host_gets_the_standard_input_of_the_instances(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("stdin") / "input"
    file.write_bytes(b"for all")
    given = os.open(file, os.O_RDONLY)
    kept = os.dup(0)
    os.dup2(given, 0)  # a regular file, which epoll would refuse
    try:
        loop = Loop(monkeypatch, stdin=Stdin(copies=2))
        pipes = [loop.host.stdin.descriptor_for(rank) for rank in range(2)]
        loop.turn(3)
        assert [os.read(pipe or -1, 100) for pipe in pipes] == [b"for all"] * 2
        assert [os.read(pipe or -1, 100) for pipe in pipes] == [b""] * 2
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(given)


def test_the_launcher_of_an_elastic_job_lets_others_survive_once_all_have_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, 2, reform_refusal="")
    loop.host.play(MpirunStarted(pid=1), Connected(rank=1))
    loop.turn(2)
    assert loop.sent == []

    loop.host.play(Connected(rank=0))
    loop.turn(2)

    assert loop.sent == [("signal_mpirun", signal.SIGUSR1)]


def test_the_launcher_lets_others_survive_the_loss_of_a_host_before_all_have_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, 2, reform_refusal="")
    loop.host.play(MpirunStarted(pid=1), Connected(rank=0), Started(rank=0, pid=7))
    loop.host.play(CanReform(rank=0))
    loop.turn(3)
    assert loop.sent == []

    loop.host.play(HostLost(host="n1", ranks=(1,), why="it was switched off"))
    loop.turn(2)

    assert loop.sent == [("signal_mpirun", signal.SIGUSR1)]


def test_the_launcher_of_another_job_ends_the_others_at_each_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, 2)
    loop.run_all()

    loop.turn(3)

    assert loop.sent == []


class ElasticLoop(Loop):
    """A job in which instance 1 was killed, and waits to be started again.

    A leftover process of it has its stdout open still.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(
            monkeypatch, 2, reform_refusal="", least_instances=1, restarts_left=1
        )
        self.run_all()
        self.host.play(*(CanReform(rank=rank) for rank in self.host.ranks))
        stream, self.program = os.pipe()
        self.host.streams.open(DescriptorSource(stream), 1, "stdout")
        self.host.play(*self.host.end(1, KILLED, by_itself=True))
        while not self.supervisor._members._to_start:
            self.turn()

    def end_leftovers(self) -> None:
        os.close(self.program)
        self.turn(3)

    @property
    def starts(self) -> list[tuple[object, ...]]:
        return [call for call in self.host.calls if call[0] == "start_again"]


def test_an_instance_is_started_again_when_its_streams_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = ElasticLoop(monkeypatch)
    loop.turn(3)
    assert loop.starts == []

    loop.end_leftovers()

    assert loop.starts == [("start_again", 1)]


def test_no_instance_of_a_lost_host_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = ElasticLoop(monkeypatch)
    loop.host.play(HostLost(host="n1", ranks=(1,), why="it was switched off"))
    loop.turn(2)

    loop.end_leftovers()

    assert loop.starts == []
    loop.host.play(*loop.host.end(0, 0, by_itself=True))
    assert loop.run().state.cause is None


def test_no_instance_is_started_again_after_the_last_member_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = ElasticLoop(monkeypatch)
    loop.host.play(exited(0))
    loop.turn(2)

    loop.end_leftovers()

    assert loop.starts == []
    loop.host.play(Clean(rank=0, left_behind=0))
    assert loop.run().state.cause is None


@pytest.mark.parametrize(
    "event", [CanReform(rank=0), exited(0)], ids=["can re-form", "program has ended"]
)
def test_no_hosts_are_looked_for_once_a_job_cannot_grow_any_more(
    monkeypatch: pytest.MonkeyPatch, event: Event
) -> None:
    search = FakeSearch()
    loop = Loop(monkeypatch, 2, search=search, reform_refusal="")
    loop.turn(2)
    assert not search.looks
    loop.run_all()
    loop.turn(3)
    assert search.looks

    loop.host.play(event)
    loop.turn(2)

    assert not search.looks


def test_hosts_are_looked_for_while_instances_could_re_form_but_the_job_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = FakeSearch()
    loop = Loop(monkeypatch, 2, search=search)
    loop.run_all()
    loop.host.play(CanReform(rank=0))

    loop.turn(4)

    assert (search.looks, search.num_ends) == (True, 0)


def test_no_hosts_are_looked_for_once_the_job_stops_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = FakeSearch()
    loop = Loop(monkeypatch, 2, search=search)
    loop.run_all()
    loop.turn(4)
    assert search.looks
    search.found = HostsAvailable(
        hosts=("a",), new_hosts=(), num_running=2, num_instances=1
    )
    loop.turn(2)

    assert search.found in loop.events
    assert (search.looks, search.num_ends) == (False, 1)


def test_a_slow_reader_of_a_job_that_survived_a_loss_gets_all_of_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, 2, reform_refusal="")
    loop.run_all()
    loop.host.play(*(CanReform(rank=rank) for rank in loop.host.ranks))
    loop.host.play(*loop.host.end(1, KILLED, by_itself=True))
    loop.host.play(*loop.host.end(0, 0, by_itself=True))

    assert loop.run().state.cause is None
    assert loop.supervisor._reader_timeout() == inf


def test_a_slow_reader_of_a_job_that_failed_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, 2, keep_going=True)
    loop.run_all()
    loop.host.play(*loop.host.end(1, KILLED, by_itself=True))
    loop.host.play(*loop.host.end(0, 0, by_itself=True))

    assert loop.run().state.cause is None
    assert loop.supervisor._reader_timeout() == AFTER_FAILURE_S


def test_the_results_of_hosts_that_have_joined_are_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    joined = FakeHost("n1", [2, 3], ends_mpirun=False)
    loop.run_all()
    for rank in loop.host.ranks:
        loop.host.play(*loop.host.end(rank, 0, by_itself=True))
    collected: list[object] = []
    loop.supervisor._hosts.put(joined)

    loop.supervisor.run(lambda end, hosts: collected.extend(hosts))

    assert collected == [loop.host, joined]
