"""Who a shim obeys: the listener of its own user, and no other."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import poprun
from poprun.wire import protocol
from poprun.wire.channel import Channel, connect

ENTRY = str(Path(poprun.__file__).parent / "helpers" / "entry.py")
ANOTHER_USER = 65534


@pytest.fixture
def name() -> str:
    return f"poprun-test-{os.urandom(8).hex()}"


def shim(name: str, key: str = "key") -> "subprocess.Popen[str]":
    environ = {"POPDIST_CONTROL": f"@{name}/{key}"}
    words = [sys.executable, "-I", "-S", ENTRY, "shim", "JOB", "POPDIST_CONTROL", "0"]
    return subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True)


@contextmanager
def listener(name: str, user: int) -> Iterator[int]:
    """Listen as another user; yield a pipe that gets what the first client sends."""
    ready, set_ready = os.pipe()
    received, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(f"\0{name}")
                sock.listen()
                os.write(set_ready, b"1")
                client, _ = sock.accept()
                os.write(write, b"came;" + client.recv(1 << 16))
        finally:
            os._exit(0)
    os.close(write)
    os.read(ready, 1)
    try:
        yield received
    finally:
        os.waitpid(pid, 0)
        for descriptor in (ready, set_ready, received):
            os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_shim_tells_nothing_to_a_listener_of_another_user(name: str) -> None:
    with listener(name, ANOTHER_USER) as received:
        process = shim(name)
        _, err = process.communicate(timeout=200)

        assert select.select([received], [], [], 200)[0]
        assert os.read(received, 1 << 16) == b"came;"
    assert process.returncode == 1
    assert err == (
        "The shim of instance 0 cannot reach poprun: the control socket belongs to "
        "user 65534, not to 0.\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_client_accepts_a_listener_of_another_user(name: str) -> None:
    with (
        listener(name, ANOTHER_USER) as received,
        pytest.raises(PermissionError, match="belongs to user 65534, not to 0"),
    ):
        connect(f"@{name}/key".encode())
    del received


def test_a_shim_proves_to_its_own_user_that_it_belongs_to_the_job(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"\0{name}")
        sock.listen()
        process = shim(name, key="c0ffee")
        client, _ = sock.accept()
        channel = Channel(client)
        assert select.select([channel], [], [], 200)[0]
        [(kind, fields)] = channel.receive() or []
        channel.send(protocol.pack(protocol.RELEASE))
        _, err = process.communicate(timeout=200)
        channel.close()

    assert (kind, fields[1:3], err) == (protocol.HELLO, [b"c0ffee", b"0"], "")
    assert process.returncode == 0


def test_a_shim_without_the_variable_says_so() -> None:
    words = [sys.executable, "-I", "-S", ENTRY, "shim", "JOB", "POPDIST_CONTROL", "3"]
    process = subprocess.run(words, env={}, stderr=subprocess.PIPE, text=True)

    assert process.returncode == 1
    assert process.stderr == (
        "The shim of instance 3 has no POPDIST_CONTROL in its environment.\n"
    )
