"""The client against servers that are not there, slow, or talk nonsense."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from poprun.vipu import wire
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.client.server_inventory import ServerInventory
from poprun.vipu.leases import Grant
from poprun.vipu.model import Agent, Partition
from poprun.vipu.vipu_errors import (
    InUseError,
    ServerReplyError,
    ServerTimeoutError,
    ServerUnreachableError,
    VipuError,
)


@contextmanager
def answering(behave: Callable[[socket.socket], None]) -> Iterator[ServerAddress]:
    """Answer every connection by a function, each in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            behave(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield ServerAddress("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def refusal(address: ServerAddress, timeout_s: float = 20) -> BaseException:
    inventory = ServerInventory(address, timeout_s=timeout_s)
    with pytest.raises(VipuError) as error:
        inventory.list_partitions()
    inventory.close()
    return error.value


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\x00\xff" * 100,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[",
        http(200, b""),
        http(200, b"<html>"),
        http(200, b"{}"),
        http(200, b"null"),
        http(200, b'[{"name": "P"}]'),
        http(200, b"[1]"),
        http(200, b"[" * 100_000),
        http(200, b"\xff"),
        http(302, b""),
        http(500, b"Internal Server Error"),
        http(500, b"[]"),
        http(500, b'{"code": "what", "message": "x"}'),
        http(500, b'{"code": "in_use"}'),
        http(500, b'{"code": ["in_use"], "message": "x"}'),
        http(503, b'{"code": "in_use", "message": 1}'),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    ],
    ids=lambda reply: repr(reply[:40]),
)
def test_nonsense_is_one_sentence(reply: bytes) -> None:
    with answering(lambda connection: connection.sendall(reply)) as address:
        error = refusal(address)

        assert type(error) is ServerReplyError
        assert str(error).startswith(
            f"What answers at {address} is no V-IPU server of poprun, or it fails: "
        )


def test_a_reply_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poprun.vipu.client.connection.MOST_BYTES", 1 << 20)

    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        while True:
            connection.sendall(b" " * 65536)

    with answering(flood) as address:
        assert "its reply is longer than 1 MiB" in str(refusal(address))


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def dripping(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        time.sleep(0.05)
        connection.sendall(b" ")


@pytest.mark.parametrize("behave", [silent, dripping])
def test_the_timeout_is_that_of_the_whole_reply(
    behave: Callable[[socket.socket], None],
) -> None:
    with answering(behave) as address:
        error = refusal(address, 0.5)

    assert type(error) is ServerTimeoutError
    assert str(error) == (
        f"The V-IPU server {address} did not answer within 0.5 s. Wait longer with "
        f"--vipu-server-timeout, or see whether it works: http://{address}/health."
    )


def test_no_server_gets_the_command_that_starts_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = refusal(ServerAddress("127.0.0.1", port))

    assert type(error) is ServerUnreachableError
    assert str(error) == (
        f"No V-IPU server answers at 127.0.0.1:{port}, which comes from an option: "
        f"Connection refused. Start one with: vipu-server --port {port}, or leave "
        "--vipu-server-host out, and poprun gives the job emulated IPUs of this "
        "machine."
    )


def test_a_host_that_is_none_gets_a_sentence() -> None:
    error = refusal(ServerAddress("no-such-host.invalid", origin="/x.hcl"))

    assert type(error) is ServerUnreachableError
    assert "which comes from /x.hcl: " in str(error)
    assert "or remove it from /x.hcl" in str(error)


def test_a_refusal_of_the_server_is_that_error_with_its_sentence() -> None:
    body = json.dumps({"code": "in_use", "message": "P is\x1b[2J in use."}).encode()
    with answering(lambda connection: connection.sendall(http(409, body))) as address:
        error = refusal(address)

    assert type(error) is InUseError
    assert str(error) == "P is [2J in use."


def test_a_connection_that_the_server_has_closed_is_replaced() -> None:
    taken = []

    def once(connection: socket.socket) -> None:
        taken.append(connection)
        connection.sendall(http(200, b"[]"))

    with answering(once) as address:
        inventory = ServerInventory(address, timeout_s=20)
        for _ in range(3):
            assert inventory.list_partitions() == ()
            # The end of the connection has arrived before the next request.
            (idle,) = inventory._connections._idle
            idle.settimeout(20)
            assert idle.recv(1, socket.MSG_PEEK) == b""
        inventory.close()

    assert len(taken) == 3


@pytest.mark.parametrize("kind", [Partition, tuple[Partition, ...], Grant, None, str])
@pytest.mark.parametrize("value", [1, 1.5, "x", [], {}, [{}], True, [[]]])
def test_json_that_is_no_value_is_refused(kind: object, value: object) -> None:
    if (kind, value) in ((str, "x"), (tuple[Partition, ...], [])):
        return
    with pytest.raises(wire.WireError):
        wire.from_json(kind, value)


def test_a_field_of_a_newer_server_is_left_out() -> None:
    agent = {"name": "a", "host": "h", "colour": "blue"}

    assert wire.from_json(Agent, agent) == Agent("a", "h")


def test_the_client_imports_nothing_heavy() -> None:
    heavy = "http", "ssl", "email", "asyncio", "msgspec", "starlette"
    code = (
        "import sys\n"
        "from poprun.vipu.client.server_inventory import ServerInventory as S\n"
        "from poprun.vipu.client.server_address import ServerAddress as A\n"
        "S(A('localhost'), timeout_s=1); "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_what_is_missing_to_ask_a_server_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)

    with pytest.raises(ServerUnreachableError, match=r"pip install 'poprun\[vipu\]'"):
        ServerInventory(ServerAddress("localhost"), timeout_s=1)
