"""The client against servers that are not there, slow, or talk nonsense."""

import json
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import pytest
from vipu_servers import (
    acquisition,
    answering,
    count_timeout_from_connection,
    http,
)

from poprun.vipu import wire
from poprun.vipu.client.connection import Connections, Reply, _Exchange
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.client.server_inventory import ServerInventory
from poprun.vipu.errors import (
    InUseError,
    ServerReplyError,
    ServerTimeoutError,
    ServerUnreachableError,
    VipuError,
)
from poprun.vipu.launch.held_devices import HeldDevices
from poprun.vipu.launch.reserve import describe_devices
from poprun.vipu.leases import Grant
from poprun.vipu.model import Agent, Partition


def refusal(address: ServerAddress, timeout_s: float = 200) -> BaseException:
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
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nx",
    ],
    ids=lambda reply: repr(reply[:40]),
)
def test_nonsense_is_one_sentence(reply: bytes) -> None:
    with answering(lambda connection: connection.sendall(reply)) as address:
        error = refusal(address)

        assert type(error) is ServerReplyError
        assert str(error).startswith(
            f"The server at {address} is not a V-IPU server of poprun, or it fails: "
        )


def test_a_name_that_nothing_resolves_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, given_up = socket.getaddrinfo, threading.Event()

    def look_up(host: str, port: int, **options: Any) -> Any:
        if options.get("flags"):
            return original(host, port, **options)
        given_up.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    error = refusal(ServerAddress("pod.example"), timeout_s=0.05)
    given_up.set()

    assert type(error) is ServerTimeoutError
    assert str(error) == (
        "The name of the V-IPU server pod.example:8090 could not be looked up within "
        "0.05 s. Wait longer with --vipu-server-timeout, or name its address with "
        "--vipu-server-host."
    )


def test_a_request_that_was_given_up_is_not_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, given_up = socket.getaddrinfo, threading.Event()

    def look_up(*arguments: Any, **options: Any) -> Any:
        given_up.wait()
        return original(*arguments, **options)

    requests: list[socket.socket] = []
    with answering(requests.append) as address:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        assert type(refusal(address, timeout_s=0.05)) is ServerTimeoutError
        given_up.set()
        for thread in threading.enumerate():
            if isinstance(thread, _Exchange):
                thread.join()
        time.sleep(0.1)

        assert requests == []


# --- A reply that is a value, but cannot be true.

ASKED = acquisition("P", 2, lease="0" * 32)
PARTITION = {
    **{"name": "P", "cluster": "c", "allocation": "c", "owner": "alice"},
    **{"num_gcds": 1, "gcd_size": 2, "num_replicas": 1, "reconfigurable": True},
    **{"link_routing": "dnc", "gateway_routing": "default"},
    **{"sync_type": "c2-compatible", "link_topology": "mesh"},
    **{"blocks": [{"first": 0, "size": 2}], "cluster_ild_size": 64},
}
DEVICE = {"id": 2, "first": 0, "num_ipus": 2}
LEASE = {"id": "0" * 32, "holder": asdict(ASKED.holder), "since": 1.5}
GRANT = {
    "lease": {**LEASE, "lease_s": 60},
    **{"partition": PARTITION, "created": True, "parent": DEVICE},
    "children": [DEVICE],
}
VALUES: tuple[object, ...] = (
    *(0, -1, 1, 3, 2**63, 2**64, 10**400, 1e308, math.inf, math.nan),
    *("", "x\n\x1b[31mred", "x" * 1000, None, [], {}, True, [1]),
)


def paths(value: object) -> Iterator[tuple[str | int, ...]]:
    """Yield where there is something in a JSON value."""
    yield ()
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield from ((key, *path) for path in paths(item))


def changed(value: Any, path: tuple[str | int, ...], new: object) -> Any:
    """Return a JSON value with something else at a place."""
    if not path:
        return new
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def grant_of(reply: object) -> Grant:
    """Return what the client makes of a reply to `acquire`."""
    inventory = ServerInventory(ServerAddress("127.0.0.1", 9), timeout_s=1)
    body = json.dumps(reply).encode()
    with patch.object(Connections, "ask", lambda *_: Reply(200, body)):
        return inventory.acquire(ASKED)


def test_a_grant_is_what_was_asked_for() -> None:
    grant = grant_of(GRANT)

    assert [child.num_ipus for child in grant.children] == [2]
    options, _ = describe_devices(grant, {})
    assert options["instanceSize"] == "2"


@pytest.mark.parametrize("path", list(paths(GRANT)), ids=repr)
def test_of_any_reply_a_job_can_be_described_or_it_is_refused(
    path: tuple[str | int, ...],
) -> None:
    for value in VALUES:
        try:
            grant = grant_of(changed(GRANT, path, value))
        except ServerReplyError:
            continue
        describe_devices(grant, {})
        devices = HeldDevices(pytest.fail, grant, 1.0).of_instances(0, 1)
        assert (devices.device_id(0), devices.num_ipus) == (grant.children[0].id, 2)
        assert str(grant).isprintable()


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("lease", "lease_s"), 0, "something other than the request"),
        (("lease", "lease_s"), math.inf, "that is no time"),
        (("lease", "since"), 10**400, "that is no time"),
        (("lease", "id"), "1" * 32, "the lease of another job"),
        (("partition", "name"), "x\x1b[31mred", "not printable"),
        (("partition", "name"), "Q", "something other than the request"),
        (("partition", "created"), math.nan, "that is no time"),
        (("partition", "blocks"), [], "a partition 'P' without IPUs"),
        (("partition", "generation"), 2**63, "a number that is not from -1 to 9007"),
        (("parent", "num_ipus"), 0, "does not have the devices"),
        (("children",), [], "devices other than the requested ones"),
        (("children", 0, "num_ipus"), 1, "devices other than the requested ones"),
    ],
)
def test_a_grant_that_cannot_be_true_is_refused(
    path: tuple[str | int, ...], value: object, why: str
) -> None:
    # Keys that have defaults may be missing in GRANT.
    reply = json.loads(json.dumps(GRANT))
    place = reply
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value

    with pytest.raises(ServerReplyError, match=why):
        grant_of(reply)


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
    behave: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    count_timeout_from_connection(monkeypatch)
    with answering(behave) as address:
        error = refusal(address, 0.5)

    assert type(error) is ServerTimeoutError
    assert str(error) == (
        f"The V-IPU server {address} did not answer within 0.5 s. Wait longer with "
        f"--vipu-server-timeout, or see whether it works: http://{address}/health."
    )


@contextmanager
def unused_port() -> Iterator[int]:
    """Return a port at which nothing listens, and which no other process gets."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        yield silent.getsockname()[1]


def test_no_server_gets_the_command_that_starts_one() -> None:
    with unused_port() as port:
        error = refusal(ServerAddress("127.0.0.1", port))

    assert type(error) is ServerUnreachableError
    assert str(error) == (
        f"No V-IPU server answers at 127.0.0.1:{port}, which comes from an option: "
        f"Connection refused. Start one with: vipu-server --port {port}, or leave "
        "--vipu-server-host out to use emulated IPUs of this machine."
    )


def test_a_host_that_is_none_gets_a_sentence() -> None:
    error = refusal(ServerAddress("no-such-host.invalid", origin="/x.hcl"))

    assert type(error) is ServerUnreachableError
    assert "which comes from /x.hcl: " in str(error)
    assert "or remove api-host from /x.hcl to use emulated IPUs" in str(error)


def test_a_variable_that_names_no_server_is_to_be_unset() -> None:
    with unused_port() as port:
        error = refusal(ServerAddress("127.0.0.1", port, origin="VIPU_CLI_API_HOST"))

    assert str(error).endswith(
        "or unset VIPU_CLI_API_HOST to use emulated IPUs of this machine."
    )


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
        inventory = ServerInventory(address, timeout_s=200)
        for _ in range(3):
            assert inventory.list_partitions() == ()
            # The end of the connection has arrived before the next request.
            (idle,) = inventory._connections._idle
            idle.sock.settimeout(200)
            assert idle.sock.recv(1, socket.MSG_PEEK) == b""
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

    assert wire.from_json(Agent, agent) == Agent(name="a", host="h")


def test_the_client_imports_nothing_heavy() -> None:
    heavy = "asyncio", "msgspec", "starlette", "uvicorn"
    code = (
        "import sys\n"
        "from poprun.vipu.client.server_inventory import ServerInventory as S\n"
        "from poprun.vipu.client.server_address import ServerAddress as A\n"
        "S(A('localhost'), timeout_s=1); "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_server_is_asked_with_the_standard_library_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("httptools", "msgspec", "h11", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)

    with answering(lambda connection: connection.sendall(http(200, b"[]"))) as address:
        inventory = ServerInventory(address, timeout_s=200)
        assert inventory.list_clusters() == ()
        inventory.close()
