"""What poprun does with the devices of instances that another host's agent asks for."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import pytest

from poprun.host import remote_host
from poprun.host.remote_host import RemoteHost
from poprun.output import waiter
from poprun.reach.connections.silence import SILENT_S, SUSPECTED_S
from poprun.vipu.launch.held_devices import Answer, Reply
from poprun.vipu.leases import ProcessIdentity
from poprun.wire import codec, protocol
from poprun.wire.channel import Channel
from poprun.wire.events import Clean, Connected, Event, HostLost, ShimLost

THEIRS = ProcessIdentity(
    pid=7, start_time=5, boot_id="another boot", pid_namespace="pid:[1]"
)


class FakeDevices:
    """Notes which processes are to be attached; the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.replies: list[Reply] = []

    def attach_on(self, *asked: Any) -> None:
        *what, reply = asked
        self.asked.append(("attach", *what))
        self.replies.append(reply)

    def detach(self, index: int, pid: int) -> None:
        self.asked.append(("detach", index, pid))

    def note_lost_host(self) -> None:
        self.asked.append(("lost host",))


class FakeAgent:
    """The agent's end of a connection, and the link that poprun has to it."""

    def __init__(
        self,
        devices: FakeDevices | None = None,
        *,
        is_traced: bool = False,
        loss_check: Callable[[], bool] | None = None,
        **options: Any,
    ) -> None:
        self.channel, ours = map(Channel, socket.socketpair())
        self.hung_up: list[bool] = []
        hello = SimpleNamespace(hostname="h1", ssh_connection="")
        self.connection: Any = SimpleNamespace(
            hello=hello,
            channel=ours,
            receive=ours.receive,
            stderr_text="",
            memory=None,
            loss_check=lambda: loss_check,
            is_direct=True,
            hang_up=lambda: self.hung_up.append(True),
        )
        job: Any = SimpleNamespace(name="10.0.0.2", ranks=[2, 3], is_traced=is_traced)
        held: Any = devices
        self.host = RemoteHost(self.connection, job, [], held, **options)
        self.events: list[Event] = []
        nothing: Any = None
        self.host.start(self.events.append, nothing, nothing)
        self._ours = ours

    def ask(self, rank: int) -> None:
        pid, start_time, *texts = astuple(THEIRS)
        encoded = (text.encode() for text in texts)
        self.send(protocol.ATTACH_PROCESS, rank, pid, start_time, *encoded)

    def send(self, kind: int, *fields: bytes | int) -> None:
        self.channel.send(protocol.pack(kind, *fields))
        self.host.take_in_losses()

    def report(self, event: Event) -> None:
        self.channel.send(codec.pack_event(event))
        self.host.take_in_losses()

    def hang_up(self) -> None:
        self.channel.sock.shutdown(socket.SHUT_WR)
        self.host.take_in_losses()

    def close(self) -> None:
        self.channel.close()
        self._ours.close()


@pytest.fixture
def devices() -> FakeDevices:
    return FakeDevices()


@pytest.fixture
def agent(devices: FakeDevices) -> Iterator[FakeAgent]:
    made = FakeAgent(devices)
    yield made
    made.close()


def test_a_process_is_attached_by_the_name_that_its_host_has(
    agent: FakeAgent, devices: FakeDevices
) -> None:
    agent.ask(3)
    devices.replies[0](Answer(instance=3, pid=7, refusal="In use."))

    assert devices.asked == [("attach", "h1", 3, THEIRS)]
    assert agent.channel.receive() == [
        (protocol.DEVICE_ANSWER, [b"3", b"7", b"In use."])
    ]


def test_only_what_was_asked_for_is_detached(
    agent: FakeAgent, devices: FakeDevices
) -> None:
    agent.send(protocol.DETACH_PROCESS, 3, 7)
    agent.ask(3)
    agent.send(protocol.DETACH_PROCESS, 3, 7)
    agent.send(protocol.DETACH_PROCESS, 3, 7)

    assert devices.asked[1:] == [("detach", 3, 7)]


@pytest.mark.parametrize("is_direct", [True, False])
def test_the_devices_of_a_lost_host_are_held_while_its_processes_may_run(
    agent: FakeAgent, devices: FakeDevices, is_direct: bool
) -> None:
    # Behind a jump host the connection may end here, and not there.
    agent.connection.is_direct = is_direct
    agent.ask(2)
    agent.hang_up()

    assert devices.asked[1:] == ([] if is_direct else [("lost host",)])
    [lost] = agent.events
    assert isinstance(lost, HostLost)
    assert lost.may_run is not is_direct


def test_a_host_on_which_nothing_is_left_has_no_attached_process(
    agent: FakeAgent, devices: FakeDevices
) -> None:
    agent.ask(3)
    agent.send(protocol.HOST_FINISHED, 0, b"", b"")
    agent.hang_up()

    assert agent.host.finished
    assert devices.asked[1:] == [("detach", 3, 7)]


def test_a_suspected_host_is_lost_earlier_if_it_acknowledges_nothing() -> None:
    silent, slow = (
        FakeAgent(loss_check=lambda: True),
        FakeAgent(loss_check=lambda: False),
    )
    for agent in (silent, slow):
        agent.host.suspect_loss()
        agent.host.tick(time.monotonic() + SUSPECTED_S)

        agent.close()

    assert [type(event) for event in silent.events] == [HostLost]
    assert slow.events == []


def test_a_look_for_losses_is_no_answer_of_a_silent_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = FakeAgent(loss_check=lambda: True)
    later = time.monotonic() + SILENT_S
    monkeypatch.setattr(time, "monotonic", lambda: later)

    agent.host.take_in_losses()
    agent.host.tick(later)
    agent.close()

    assert [type(event) for event in agent.events] == [HostLost]


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_host_that_is_lost_before_it_has_finished_is_not_clean(
    agent: FakeAgent, *, is_finished: bool
) -> None:
    agent.send(protocol.HOST_CLEAN, 1)
    if is_finished:
        agent.send(protocol.HOST_FINISHED, 0, b"", b"")
    agent.hang_up()

    assert agent.host.is_clean is is_finished


def test_a_host_is_read_while_there_is_unsent_data_for_it(agent: FakeAgent) -> None:
    agent.host.tell(protocol.INPUT, 2, bytes(8 << 20))
    agent.channel.send(protocol.pack(protocol.HOST_CLEAN, 1))
    waiter.serve(agent.host.interests(0.0), 0.0)

    assert agent.host.is_clean


@pytest.mark.parametrize("rank", [1, 4])
def test_an_agent_that_asks_for_instances_of_others_is_lost(
    agent: FakeAgent, devices: FakeDevices, rank: int
) -> None:
    agent.ask(rank)

    assert devices.asked == [("lost host",)]
    assert [type(event) for event in agent.events] == [HostLost]


@pytest.mark.parametrize(
    ("killed", "why"),
    [
        (protocol.AGENT, "poprun's agent there was killed"),
        (protocol.GUARD, "poprun's guard there was killed"),
    ],
)
def test_a_lost_host_is_told_of_as_what_is_known(
    agent: FakeAgent, killed: bytes, why: str
) -> None:
    agent.send(protocol.SUPERVISOR_LOST, killed)

    lost = HostLost(host="10.0.0.2", ranks=(2, 3), why=why, may_run=False)
    assert agent.events == [lost]


def test_an_agent_of_a_job_without_ipus_asks_for_none() -> None:
    agent = FakeAgent(None)
    agent.ask(2)

    assert [type(event) for event in agent.events] == [HostLost]
    agent.close()


def test_the_clock_of_a_host_is_read_at_the_start_and_at_the_end() -> None:
    agent = FakeAgent(None, is_traced=True)

    def answer() -> int:
        """Answer all questions about the clock, which is 5 s ahead; return how many."""
        questions = 0
        while received := [
            fields
            for kind, fields in agent.channel.receive() or ()
            if kind == protocol.READ_CLOCK
        ]:
            for [asked] in received:
                questions += 1
                agent.send(protocol.CLOCK, asked, time.monotonic_ns() + 5 * 10**9)
        return questions

    assert answer() == 4
    agent.host.finish()
    assert answer() == 4
    readings = agent.host.clock_readings
    assert len(readings) == 8
    for reading in readings:
        assert abs(reading.offset_ns + 5 * 10**9) <= reading.uncertainty_ns
    agent.send(protocol.CLOCK, 1, 2)
    assert [type(event) for event in agent.events] == [HostLost]
    agent.close()


def test_records_of_a_host_are_kept_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_host, "MOST_BYTES_OF_RECORDS", 5)
    agent = FakeAgent(None, is_traced=True)
    for piece in (b"abc", b"de", b"f"):
        agent.send(protocol.CALL_RECORDS, b"0-7.calls", piece)

    assert agent.host.call_records == [("0-7.calls", b"abc"), ("0-7.calls", b"de")]
    agent.close()


# --- Shims that poprun starts without mpirun.


@pytest.fixture
def joining() -> Iterator[FakeAgent]:
    made = FakeAgent(shims={2: b"shim 2", 3: b"shim 3"}, joins=True)
    yield made
    made.close()


def started(agent: FakeAgent) -> list[list[bytes]]:
    """Return the commands that the agent is to run: their numbers and texts."""
    messages = agent.channel.receive() or ()
    return [fields for kind, fields in messages if kind == protocol.RUN_COMMAND]


def test_the_shims_of_a_host_that_joins_start_when_its_agent_is_ready(
    joining: FakeAgent,
) -> None:
    joining.send(protocol.JOB_STARTED)
    joining.report(Connected(rank=2))
    joining.send(protocol.COMMAND_ENDED, 2, 127)

    assert started(joining) == [[b"1", b"shim 2"], [b"2", b"shim 3"]]
    # The second one has not even connected.
    assert joining.events == [Connected(rank=2), ShimLost(rank=3)]


def test_a_host_that_refuses_to_join_is_lost(joining: FakeAgent) -> None:
    joining.send(protocol.REFUSAL, b"LaunchError", b"no room\x1b.")

    [lost] = joining.events
    assert isinstance(lost, HostLost)
    assert lost.why == r"it refuses the job: no room\x1b"
    assert joining.hung_up


def test_a_host_whose_agent_is_not_ready_in_time_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_host, "START_S", 0.0)
    ready, slow = (
        FakeAgent(loss_check=lambda: False, shims={2: b"shim 2"}, joins=True)
        for _ in range(2)
    )
    ready.send(protocol.JOB_STARTED)
    for agent in (ready, slow):
        agent.host.tick(time.monotonic())
        agent.close()

    assert ready.events == []
    [lost] = slow.events
    assert isinstance(lost, HostLost)
    assert lost.why == "its agent is not ready for the job within 0 s"


def test_no_shim_is_started_once_the_job_stops(joining: FakeAgent) -> None:
    joining.host.tell(protocol.STOP_STARTING)
    joining.send(protocol.JOB_STARTED)

    assert started(joining) == []
    assert joining.events == [Clean(rank=r, left_behind=0) for r in (2, 3)]


def test_a_lost_shim_is_replaced_when_its_instance_is_started_again() -> None:
    agent = FakeAgent(shims={2: b"shim 2", 3: b"shim 3"})
    agent.report(ShimLost(rank=2))
    agent.host.tell(protocol.START_AGAIN, 2)
    agent.host.tell(protocol.START_AGAIN, 3)

    assert started(agent) == [[b"1", b"shim 2"]]
    agent.close()
