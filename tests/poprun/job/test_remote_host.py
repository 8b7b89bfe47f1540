"""What poprun does with the devices of instances that another host's agent asks for."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from poprun.agent import messages
from poprun.agent.pipe_channel import PipeChannel
from poprun.helpers import protocol
from poprun.job.events import Event, HostLost
from poprun.job.remote_host import RemoteHost
from poprun.vipu.launch.held_devices import Answer, Reply
from poprun.vipu.leases import ProcessIdentity

THEIRS = ProcessIdentity(7, 5, "another boot", "pid:[1]")


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

    def __init__(self, devices: FakeDevices | None) -> None:
        to_agent, to_poprun = os.pipe(), os.pipe()
        self.channel = PipeChannel(to_agent[0], to_poprun[1])
        ours = PipeChannel(to_poprun[0], to_agent[1])
        hello = SimpleNamespace(hostname="h1", ssh_connection="")
        connection: Any = SimpleNamespace(
            hello=hello,
            channel=ours,
            receive=ours.receive,
            ssh_text="",
            memory=None,
            tool="ssh",
        )
        job: Any = SimpleNamespace(name="10.0.0.2", ranks=[2, 3])
        held: Any = devices
        self.host = RemoteHost(connection, job, [], lambda *_: None, held)
        self.events: list[Event] = []
        nothing: Any = None
        self.host.start(self.events.append, nothing, nothing)
        self._ours = ours

    def ask(self, rank: int) -> None:
        texts = (text.encode() for text in THEIRS[2:])
        self.send(messages.ATTACH, rank, *THEIRS[:2], *texts)

    def send(self, kind: int, *fields: bytes | int) -> None:
        self.channel.send(protocol.pack(kind, *fields))
        self.host.take_in_losses()

    def hang_up(self) -> None:
        os.close(self.channel.write_descriptor)
        self.channel.write_descriptor = os.dup(self.channel.read_descriptor)
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
    devices.replies[0](Answer(3, 7, "In use."))

    assert devices.asked == [("attach", "h1", 3, THEIRS)]
    assert agent.channel.receive() == [(messages.DEVICE, [b"3", b"7", b"In use."])]


def test_only_what_was_asked_for_is_detached(
    agent: FakeAgent, devices: FakeDevices
) -> None:
    agent.send(messages.DETACH, 3, 7)
    agent.ask(3)
    agent.send(messages.DETACH, 3, 7)
    agent.send(messages.DETACH, 3, 7)

    assert devices.asked[1:] == [("detach", 3, 7)]


def test_the_processes_of_a_lost_host_stay_attached_as_they_may_still_run(
    agent: FakeAgent, devices: FakeDevices
) -> None:
    agent.ask(2)
    agent.hang_up()

    assert devices.asked[1:] == [("lost host",)]
    assert [type(event) for event in agent.events] == [HostLost]


def test_a_host_on_which_nothing_is_left_has_no_attached_process(
    agent: FakeAgent, devices: FakeDevices
) -> None:
    agent.ask(3)
    agent.send(messages.FINISHED)
    agent.hang_up()

    assert agent.host.finished
    assert devices.asked[1:] == [("detach", 3, 7)]


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
        (messages.AGENT, "poprun's agent there was killed"),
        (messages.GUARD, "poprun's guard there was killed"),
    ],
)
def test_a_lost_host_is_told_of_as_what_is_known(
    agent: FakeAgent, killed: bytes, why: str
) -> None:
    agent.send(messages.SUPERVISOR_LOST, killed)

    assert agent.events == [HostLost("10.0.0.2", (2, 3), why)]


def test_an_agent_of_a_job_without_ipus_asks_for_none() -> None:
    agent = FakeAgent(None)
    agent.ask(2)

    assert [type(event) for event in agent.events] == [HostLost]
    agent.close()
