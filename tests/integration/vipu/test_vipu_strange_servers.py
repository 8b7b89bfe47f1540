"""Jobs whose V-IPU server is none, or hostile: one sentence, and nothing is left."""

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import Poprun
from vipu_servers import answering, http

LATE = "did not answer within {} s."
FLOOD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


def silence(connection: socket.socket) -> None:
    connection.recv(1)


def drip(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        time.sleep(0.05)
        connection.sendall(b" ")


def flood(connection: socket.socket) -> None:
    connection.sendall(FLOOD)
    while True:
        connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def saying(reply: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(reply)


def partition(**changes: object) -> bytes:
    """Return a reply with a list of one partition."""
    value = {
        **{"name": "P", "cluster": "c", "allocation": "c", "owner": "x"},
        **{"num_gcds": 1, "gcd_size": 1, "num_replicas": 1, "reconfigurable": True},
        **{"link_routing": "dnc", "gateway_routing": "default"},
        **{"sync_type": "c2-compatible", "link_topology": "mesh"},
        **{"blocks": [{"first": 0, "size": 1}], "cluster_ild_size": 64},
    }
    return http(200, json.dumps([{**value, **changes}]).encode())


MOVED = http(302, b"").replace(b"\r\n", b"\r\nLocation: http://127.0.0.1:9/\r\n", 1)
REFUSAL = json.dumps({"code": "in_use", "message": "\x1b[31mno\n" * 9000}).encode()
SERVERS = {
    "silence": (silence, LATE),
    "slow bytes": (drip, LATE),
    "endless": (flood, "longer than 64 MiB"),
    "redirect": (saying(MOVED), "not JSON (HTTP 302)"),
    "TLS": (saying(b"\x15\x03\x01\x00\x02\x02\x46"), "not HTTP"),
    "no HTTP": (saying(b"220 mail.example.com ESMTP\r\n"), "not HTTP"),
    "upgrade": (
        saying(b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"),
        "a protocol other than HTTP",
    ),
    "huge number": (saying(partition(gcd_size=10**400)), "a number that is not from"),
    "number of 5000 digits": (saying(http(200, b"9" * 5000)), "not JSON"),
    "no IPUs": (saying(partition(blocks=[])), "without IPUs"),
    "terminal codes": (saying(partition(name="\x1b[31m")), "not printable"),
    "refusal with terminal codes": (saying(http(409, REFUSAL)), " [31mno  [31mno"),
    "nesting": (saying(http(200, b"[" * 10**6)), "not JSON"),
}


@pytest.fixture(params=SERVERS.values(), ids=list(SERVERS))
def strange(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A server's port, and what poprun says of it."""
    behave, sentence = request.param
    with answering(behave) as address:
        yield str(address.port), sentence


def test_a_strange_server_gets_one_sentence(
    poprun: Poprun, strange: tuple[str, str]
) -> None:
    port, sentence = strange
    words = ("--mpirun", "local", "--vipu-server-host=127.0.0.1")
    words += (f"--vipu-server-port={port}",)
    seconds = 1 if sentence == LATE else 200

    # On a busy machine the time may be over before the request has begun.
    while (
        "looked up"
        in (ran := poprun(*words, f"--vipu-server-timeout={seconds}", "true")).stderr
    ):
        seconds *= 4

    assert ran.code == 125
    assert ran.stderr.startswith("poprun: error: ")
    assert ran.stderr.removesuffix("\n").isprintable()
    assert sentence.format(seconds) in ran.stderr
    assert ran.stdout == ""
