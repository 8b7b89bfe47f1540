"""How an agent has processes of its host attached by poprun."""

import os
from collections.abc import Iterator

import pytest

from poprun.host.devices import ForwardedDevices
from poprun.vipu import liveness
from poprun.vipu.launch.held_devices import Answer
from poprun.vipu.launch.values import InstanceDevices
from poprun.wire import messages
from poprun.wire.channel import PipeChannel


@pytest.fixture
def ends() -> Iterator[tuple[PipeChannel, PipeChannel]]:
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    agent, poprun = PipeChannel(nothing, write), PipeChannel(read, nothing)
    yield agent, poprun
    for descriptor in (read, write, nothing):
        os.close(descriptor)


def test_poprun_is_asked_with_what_identifies_the_process(
    ends: tuple[PipeChannel, PipeChannel],
) -> None:
    agent, poprun = ends
    devices = ForwardedDevices(agent, InstanceDevices("P", 1, 2, [2, 3]))
    answers: list[Answer] = []
    pid = os.getpid()

    devices.attach(3, pid, answers.append)
    identity = liveness.identify()
    assert poprun.receive() == [
        (
            messages.ATTACH,
            [
                *(b"3", b"%d" % pid, b"%d" % identity.start_time),
                *(identity.boot_id.encode(), identity.pid_namespace.encode()),
            ],
        )
    ]
    devices.receive(3, pid, "")
    # Only the first answer is one to a question.
    devices.receive(3, pid, "again")
    devices.detach(3, pid)

    assert answers == [Answer(3, pid)]
    assert poprun.receive() == [(messages.DETACH, [b"3", b"%d" % pid])]


def test_an_answer_to_a_process_that_has_ended_is_dropped(
    ends: tuple[PipeChannel, PipeChannel],
) -> None:
    devices = ForwardedDevices(ends[0], InstanceDevices("P", 1, 2, [2, 3]))
    answers: list[Answer] = []

    devices.attach(2, os.getpid(), answers.append)
    devices.detach(2, os.getpid())
    devices.receive(2, os.getpid(), "")

    assert answers == []


def test_a_process_that_is_gone_is_refused_without_poprun(
    ends: tuple[PipeChannel, PipeChannel],
) -> None:
    agent, poprun = ends
    devices = ForwardedDevices(agent, InstanceDevices("P", 1, 2, [2, 3]))
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    answers: list[Answer] = []

    devices.attach(2, child, answers.append)

    assert answers == [
        Answer(
            2,
            child,
            "Instance 2 cannot attach to device 2 (1 IPU) of partition P: There is no "
            f"process {child}.",
        )
    ]
    assert poprun.receive() == []
