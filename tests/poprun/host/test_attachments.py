"""Which processes are attached, whatever the order in which they come and go."""

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from poprun.host.attachments import Attachments, ForwardedDevices
from poprun.vipu import liveness
from poprun.vipu.launch.held_devices import Answer
from poprun.vipu.launch.values import InstanceDevices
from poprun.wire import protocol
from poprun.wire.channel import Channel


class FakeDevices(ForwardedDevices):
    """Notes which processes are to be attached; the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def attach(self, index: int, pid: int, reply: Callable[[Answer], None]) -> None:
        self.asked.append(("attach", index, pid))

    def detach(self, index: int, pid: int) -> None:
        self.asked.append(("detach", index, pid))


class Client:
    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.link = Channel(ours)

    def received(self) -> list[tuple[int, list[bytes]]]:
        try:
            return protocol.Decoder().feed(self.sock.recv(4096))
        except BlockingIOError:
            return []


NewClient = Callable[[], Client]


@pytest.fixture
def client() -> Iterator[NewClient]:
    """Make processes that ask."""
    made: list[Client] = []

    def make() -> Client:
        made.append(Client())
        return made[-1]

    yield make
    for one in made:
        one.sock.close()
        one.link.close()


@pytest.fixture
def devices() -> FakeDevices:
    return FakeDevices()


@pytest.fixture
def attachments(devices: FakeDevices) -> Attachments:
    return Attachments(
        devices, InstanceDevices(partition="P", num_ipus=2, first=0, ids=[8, 9])
    )


def granted(device: int) -> list[tuple[int, list[bytes]]]:
    return [(protocol.ATTACHED, [b"%d" % device])]


def test_a_process_hears_when_the_inventory_has_attached_it(
    attachments: Attachments, devices: FakeDevices, client: NewClient
) -> None:
    asking = client()
    attachments.ask(asking.link, 1, 100, 2)
    assert asking.received() == []

    attachments.pass_on(Answer(instance=1, pid=100))

    assert asking.received() == granted(9)


def test_processes_of_one_instance_share_the_attachment_of_the_first(
    attachments: Attachments, devices: FakeDevices, client: NewClient
) -> None:
    first, early, late = client(), client(), client()
    attachments.ask(first.link, 0, 100, 2)
    attachments.ask(early.link, 0, 101, 1)
    attachments.pass_on(Answer(instance=0, pid=100))
    attachments.ask(late.link, 0, 102, 2)

    assert first.received() == early.received() == late.received() == granted(8)
    assert devices.asked == [("attach", 0, 100)]

    attachments.receive(first.link, None)

    # Another of them takes its place.
    assert devices.asked[1:] == [("detach", 0, 100), ("attach", 0, 101)]
    attachments.receive(late.link, None)
    attachments.receive(early.link, None)
    assert devices.asked[3:] == [("detach", 0, 101)]


def test_an_answer_about_a_process_that_has_ended_is_for_no_other(
    attachments: Attachments, devices: FakeDevices, client: NewClient
) -> None:
    first, second = client(), client()
    attachments.ask(first.link, 0, 100, 2)
    attachments.ask(second.link, 0, 101, 2)
    attachments.receive(first.link, None)

    attachments.pass_on(Answer(instance=0, pid=100, refusal="too late"))
    assert second.received() == []

    attachments.pass_on(Answer(instance=0, pid=101))
    assert second.received() == granted(8)


def test_a_refusal_reaches_all_that_wait_and_the_next_may_try_again(
    attachments: Attachments, devices: FakeDevices, client: NewClient
) -> None:
    first, second = client(), client()
    attachments.ask(first.link, 0, 100, 2)
    attachments.ask(second.link, 0, 101, 2)

    attachments.pass_on(Answer(instance=0, pid=100, refusal="The lease has ended."))

    refused = [(protocol.NOT_ATTACHED, [b"The lease has ended."])]
    assert first.received() == second.received() == refused
    assert first.link.fileno() == second.link.fileno() == -1
    third = client()
    attachments.ask(third.link, 0, 102, 2)
    assert devices.asked == [("attach", 0, 100), ("attach", 0, 102)]


def test_more_ipus_than_the_device_has_are_refused_at_once(
    attachments: Attachments, devices: FakeDevices, client: NewClient
) -> None:
    asking = client()

    attachments.ask(asking.link, 0, 100, 4)

    [(kind, [sentence])] = asking.received()
    assert kind == protocol.NOT_ATTACHED
    assert sentence.startswith(
        b"Instance 0 cannot attach to device 8 (2 IPUs) of partition P: it was asked "
        b"for with 4 IPUs. Ask for 2, or start"
    )
    assert devices.asked == []


def test_a_job_without_ipus_has_no_device(client: NewClient) -> None:
    asking = client()

    Attachments(None, None).ask(asking.link, 3, 100, 1)

    assert asking.received() == [
        (protocol.NOT_ATTACHED, [b"Instance 3 belongs to a job without IPUs."])
    ]


Sent = list[tuple[object, ...]]


def forwarded(sent: Sent) -> ForwardedDevices:
    """Return devices of instances 2 and 3, whose holder is sent these messages."""

    def send(*message: object) -> None:
        sent.append(message)

    return ForwardedDevices(
        send, InstanceDevices(partition="P", num_ipus=1, first=2, ids=[2, 3])
    )


def test_an_agent_asks_poprun_with_what_identifies_the_process() -> None:
    sent: Sent = []
    devices = forwarded(sent)
    answers: list[Answer] = []
    pid, identity = os.getpid(), liveness.identify()

    devices.attach(3, pid, answers.append)
    devices.receive(3, pid, "")
    # Only the first answer is one to a question.
    devices.receive(3, pid, "again")
    devices.detach(3, pid)

    assert answers == [Answer(instance=3, pid=pid)]
    names = identity.boot_id.encode(), identity.pid_namespace.encode()
    assert sent == [
        (protocol.ATTACH_PROCESS, 3, pid, identity.start_time, *names),
        (protocol.DETACH_PROCESS, 3, pid),
    ]


def test_an_answer_of_poprun_to_a_process_that_has_ended_is_dropped() -> None:
    devices = forwarded([])
    answers: list[Answer] = []

    devices.attach(2, os.getpid(), answers.append)
    devices.detach(2, os.getpid())
    devices.receive(2, os.getpid(), "")

    assert answers == []


def test_a_process_that_is_gone_is_refused_without_poprun() -> None:
    sent: Sent = []
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    answers: list[Answer] = []

    forwarded(sent).attach(2, child, answers.append)

    assert answers == [
        Answer(
            instance=2,
            pid=child,
            refusal="Instance 2 cannot attach to device 2 (1 IPU) of partition P: "
            f"There is no process {child}.",
        )
    ]
    assert sent == []
