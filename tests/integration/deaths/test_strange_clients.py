"""Clients of the control socket that are none, and say what no client says."""

import contextlib
import os
import random
import socket

import pytest
from conftest import Poprun, wait_for

from poprun.wire import protocol

KEY = b"KEY"
HELLO = (b"1", KEY, b"0", b"h", b"1", b"1")


def control(poprun: Poprun) -> tuple[str, bytes]:
    path = poprun.directory / "control"
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), "the instance")
    name, _, key = path.read_text().strip().partition("/")
    return f"\0{name[1:]}", key.encode()


def connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address)  # waits while the queue of the listener is full
    sock.settimeout(200)
    return sock


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def start(poprun: Poprun, *options: str) -> tuple[str, bytes]:
    poprun.start(
        *("--mpirun", "local"),
        *(*options, "sh", "-c"),
        "echo $POPDIST_CONTROL > control.new; mv control.new control; "
        "while [ ! -e stop ]; do sleep 0.05; done; echo done",
    )
    return control(poprun)


def finish(poprun: Poprun) -> tuple[int, bytes, str]:
    (poprun.directory / "stop").touch()
    out, err = poprun.started[0].communicate(timeout=200)
    return poprun.started[0].returncode, out, err.decode()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param((b"1", KEY, b"-1", b"h", b"1", b"1"), id="rank-minus-1"),
        pytest.param((b"1", KEY, b"x", b"h", b"1", b"1"), id="no-number"),
        pytest.param((b"1", KEY, b"9" * 5000, b"h", b"1", b"1"), id="huge"),
        pytest.param((b"1", KEY, b"7", b"h", b"1", b"1"), id="no-such-rank"),
        pytest.param((b"1", KEY, b"0", b"h", b"1", b"1"), id="taken-rank"),
        pytest.param((b"1", KEY, b"0", b"h", b"x", b"1"), id="pid-is-no-number"),
        pytest.param((b"2", KEY, b"0", b"h", b"1", b"1"), id="another-version"),
        pytest.param((b"1", b"guess", b"0", b"h", b"1", b"1"), id="another-key"),
        pytest.param((b"1", KEY, b"0"), id="too-few"),
        pytest.param((), id="none"),
    ],
)
def test_a_hello_that_is_wrong_ends_its_connection_and_nothing_else(
    poprun: Poprun, fields: tuple[bytes, ...]
) -> None:
    address, key = start(poprun, "-vv")
    told = [key if field == KEY else field for field in fields]
    with connect(address) as sock:
        sock.sendall(protocol.pack(protocol.HELLO, *told))
        assert is_closed(sock)

    code, out, err = finish(poprun)
    assert (code, out.splitlines()[-1:]) == (0, [b"done"])
    assert "POPRUN [D] A connection to the control socket was closed: " in err
    assert "Traceback" not in err


def test_noise_and_silence_do_not_disturb_a_job(poprun: Poprun) -> None:
    address, key = start(poprun)
    chance = random.Random(7)
    silent = [connect(address) for _ in range(100)]
    for _ in range(100):
        with connect(address) as sock:
            kind = chance.choice([1, 2, 3, 4, 5, 6, 10, 33, 255])
            fields = [
                chance.choice([b"", b"-1", b"1", key, b"0", chance.randbytes(9)])
                for _ in range(chance.randrange(8))
            ]
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(
                    chance.choice([protocol.pack(kind, *fields), os.urandom(99)])
                )
    # The oldest that say nothing make room for others.
    assert is_closed(silent[0])
    with connect(address) as sock:
        with contextlib.suppress(BrokenPipeError):
            sock.sendall((200 << 20).to_bytes(4, "big"))
        assert is_closed(sock)
    for sock in silent:
        sock.close()

    assert finish(poprun) == (0, b"done\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_word_and_disturbs_nothing(poprun: Poprun) -> None:
    address, key = start(poprun, "-vv")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(65534)
            for _ in range(200):
                with connect(address) as sock:
                    fields = [key if field == KEY else field for field in HELLO]
                    with contextlib.suppress(BrokenPipeError):
                        sock.sendall(protocol.pack(protocol.HELLO, *fields))
                    if not is_closed(sock):
                        os.write(write, b"heard")
            os.write(write, b"end")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 99) == b"end"
    os.close(read)

    code, out, err = finish(poprun)
    assert (code, out.splitlines()[-1:]) == (0, [b"done"])
    assert "was closed: it came from user 65534" in err
