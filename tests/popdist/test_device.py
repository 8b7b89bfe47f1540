"""What popdist makes of poprun's answers about devices."""

import os
import socket
import threading
from collections.abc import Callable

import pytest

import popdist
from popdist import device
from popdist.environment import Instance
from popdist.errors import DeviceError
from poprun.wire import protocol

PAIR = Instance(num_total_replicas=4, num_local_replicas=2, replica_index_offset=2)


def test_the_messages_are_those_of_poprun() -> None:
    ours = [device.ATTACH, device.ATTACHED, device.NOT_ATTACHED]
    assert ours == [protocol.ATTACH, protocol.ATTACHED, protocol.NOT_ATTACHED]


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, True),
        ({"POPDIST_CONTROL": ""}, False),
        ({"IPUOF_VIPU_API_PARTITION_ID": ""}, False),
        ({"POPDIST_OFFLINE_MODE": "1"}, False),
    ],
)
def test_only_a_job_of_poprun_that_has_ipus_has_devices(
    changed: dict[str, str], holds: bool
) -> None:
    environ = {
        "POPDIST_CONTROL": "@name/key",
        "IPUOF_VIPU_API_PARTITION_ID": "P",
        "POPDIST_OFFLINE_MODE": "0",
    }

    assert device.is_emulated(environ | changed) is holds


Answer = Callable[[bytes], dict[str, str]]


@pytest.fixture
def poprun_answers() -> Answer:
    """Listen as poprun does, and give the next client one answer."""

    def listen(answer: bytes) -> dict[str, str]:
        name = f"poprun-test-{os.urandom(8).hex()}"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(b"\0" + name.encode())
        server.listen()

        def serve() -> None:
            with server, server.accept()[0] as connection:
                asked.append(connection.recv(4096))
                connection.sendall(answer)

        asked.clear()
        threading.Thread(target=serve, daemon=True).start()
        return {"POPDIST_CONTROL": f"@{name}/key", "IPUOF_VIPU_API_PARTITION_ID": "P"}

    return listen


asked: list[bytes] = []


def test_a_process_asks_for_the_device_of_its_instance(poprun_answers: Answer) -> None:
    environ = poprun_answers(protocol.pack(protocol.ATTACHED, 9))

    assert device.attach(environ, PAIR) == 9
    assert asked == [protocol.pack(protocol.ATTACH, 1, b"key", 1, 2)]
    # It is attached already.
    assert device.attach(environ, PAIR) == 9


def test_a_refusal_is_the_sentence_that_poprun_sends(poprun_answers: Answer) -> None:
    environ = poprun_answers(protocol.pack(protocol.NOT_ATTACHED, b"Not this one."))

    with pytest.raises(DeviceError, match=r"^Not this one\.$"):
        device.attach(environ, PAIR)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "it has ended, or does not know this job"),
        (b"\0\0", "it has ended, or does not know this job"),
        (b"\xff\xff\xff\xff", "its answer is not valid"),
        (protocol.pack(protocol.ATTACHED, b"nine"), "its answer is not valid"),
        (protocol.pack(protocol.HELLO, b"9"), "its answer is not valid"),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error_in_words(
    poprun_answers: Answer, answer: bytes, reason: str
) -> None:
    with pytest.raises(DeviceError) as caught:
        device.attach(poprun_answers(answer), PAIR)

    assert str(caught.value) == (
        "Instance 1 cannot attach to its device (2 IPUs) of partition P, because "
        "poprun, which holds the IPUs of the job, cannot be asked: "
        f"{reason}. Start the job again."
    )


def test_a_job_of_processes_has_no_device_and_says_which_option_gives_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in PAIR.encode().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POPDIST_OFFLINE_MODE", "1")

    assert popdist.getDeviceId() == 5

    monkeypatch.setenv("POPDIST_OFFLINE_BECAUSE_OF", "-n")
    with pytest.raises(DeviceError) as caught:
        popdist.getDeviceId()
    assert str(caught.value) == (
        "This job runs without IPUs: its size comes from -n, and no option is about "
        "replicas, IPUs or V-IPU. Add --offline-mode=no to poprun's options."
    )
