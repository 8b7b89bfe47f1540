"""Clients that mean harm or are broken are refused, and the server goes on."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest
from conftest import wait_for
from vipu_servers import COMMAND, Server, acquisition, serving

from poprun.vipu import liveness
from poprun.vipu.errors import BY_CODE, VipuRuleError
from poprun.vipu.server import application

# Sends each request slowly, and gives up waiting soon: see the server's limits.
IMPATIENT = """
import sys
from poprun.vipu.server import http_server, serve
http_server.REQUEST_TIMEOUT_S = 0.5
http_server.REPLY_TIMEOUT_S = 2
http_server.CHECK_TICKS = 1
sys.exit(serve.main())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("vipu") / "server.db") as started:
        yield started
        # Whatever it was sent, it wrote no traceback, and ends as it should.
        assert "Traceback" not in started.log.read_text()
        assert started.stop() == 0


def post(
    path: str, body: bytes, *headers: str, kind: str | None = "application/json"
) -> bytes:
    lines = [f"POST {path} HTTP/1.1", *headers]
    if not any(header.startswith("Host:") for header in headers):
        lines.append("Host: localhost")
    if kind is not None:
        lines.append(f"Content-Type: {kind}")
    if not any(re.match("Content-Length|Transfer", header) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def answer(server: Server, request: bytes) -> tuple[int, dict[str, str]]:
    """Return the status of a reply, and the refusal in it, whose form is checked."""
    head, _, body = server.exchange(request).partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1.1 (\d{3}) ", head)
    assert match, head
    refusal = json.loads(body)
    assert refusal.keys() == {"code", "message"}
    assert refusal["code"] in BY_CODE
    assert "Traceback" not in refusal["message"]
    assert "File " not in refusal["message"]
    assert refusal["message"].endswith(".")
    return int(match[1]), refusal


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"[" * 1_000_000,
        b'{"name":' * 100_000,
        b'{"name": 1}',
        b'{"name": null}',
        b'{"name": ["x"]}',
        b'{"name": "\xff"}',
        b'{"name": "\\ud800"}',
        b'{"nam": "x"}',
        b'{"name": "x", "more": 1}',
        b'{"name": "' + b"x" * 2000 + b'"}',
        b"\x00" * 1000,
        '{"name": "x"}'.encode("utf-16"),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_no_request_is_refused(server: Server, body: bytes) -> None:
    status, refusal = answer(server, post("/user/get_cluster", body))

    assert (status, refusal["code"]) == (400, "invalid")


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "a'; DROP TABLE leases; --", "\x00", "\x1b[2J", "é", "", "%s"],
)
def test_a_name_with_odd_characters_is_only_a_name(server: Server, name: str) -> None:
    body = json.dumps({"name": name}).encode()
    assert answer(server, post("/user/get_cluster", body))[0] == 404
    request = {"name": name, "size": 4}
    body = json.dumps({"request": request}).encode()
    status, refusal = answer(server, post("/user/create_partition", body))

    assert (status, refusal["code"]) == (400, "invalid")
    assert all(c.isprintable() for c in refusal["message"])


@pytest.mark.parametrize("number", [-1, 0, 2**31, 2**53 - 1, 2**53, 2**64, 10**400])
@pytest.mark.parametrize(
    "field", ["num_children", "ipus_per_child", "size", "num_gcds"]
)
def test_a_number_that_no_job_has_is_refused(
    server: Server, field: str, number: int
) -> None:
    process = {"pid": 1, "start_time": 1, "boot_id": "b", "pid_namespace": "p"}
    holder = {"user": "u", "job": "j", "host": "h", "process": process}
    create = {"name": "P", "size": 4, "num_gcds": 1}
    asked = {"partition": "P", "num_children": 1, "ipus_per_child": 1}
    (create if field in create else asked)[field] = number
    body = json.dumps(
        {"request": asked | {"holder": holder, "create": create}}
    ).encode()

    assert answer(server, post("/user/acquire", body))[0] in (400, 409)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post("/user/no_such_thing", b"{}"), 404),
        (post("/user/get_cluster/", b"{}"), 404),
        (post("/user/create_cluster/../list_clusters", b"{}"), 404),
        (post("/nobody/get_cluster", b"{}"), 404),
        (post("/", b"{}"), 404),
        (post("/health", b"{}"), 405),
        (b"GET /user/frogs HTTP/1.0\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /user/list_clusters HTTP/1.0\r\nHost: localhost\r\n\r\n", 405),
        (post("/user/list_clusters", b"{}", kind=None), 415),
        (post("/user/list_clusters", b"{}", kind="text/plain"), 415),
        (post("/user/list_clusters", b"{}", "Host: evil.com"), 403),
        (post("/user/list_clusters", b"{}", "Host: evil.com:8090"), 403),
        (post("/user/list_clusters", b"{}", "Origin: http://localhost:8090"), 403),
        (post("/user/list_clusters", b"{}", "Origin: null"), 403),
    ],
    ids=lambda value: value[:50] if isinstance(value, bytes) else None,
)
def test_what_is_no_request_of_a_client_is_refused(
    server: Server, request_bytes: bytes, status: int
) -> None:
    assert answer(server, request_bytes)[0] == status


def test_a_huge_body_is_refused_before_it_is_kept(server: Server) -> None:
    before = psutil.Process(server.process.pid).memory_info().rss
    declared = 10 * 1024**3
    head = post("/user/get_cluster", b"", f"Content-Length: {declared}")
    with server.connect() as connection:
        connection.sendall(head)
        try:
            for _ in range(1024):
                connection.sendall(b" " * 65536)
        except (ConnectionResetError, BrokenPipeError):
            pass  # as soon as it has seen too much
        else:
            pytest.fail("64 MiB of a body were taken")
    after = psutil.Process(server.process.pid).memory_info().rss
    assert after - before < 64 << 20


def test_an_endless_head_is_cut_off(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /user/get_cluster HTTP/1.1\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
            for number in range(100_000):
                connection.sendall(b"X-%d: %s\r\n" % (number, b"x" * 1000))


@pytest.mark.parametrize(
    "begin",
    [
        b"POST /user/get_cluster HTTP/1.1\r\n",
        post("/user/get_cluster", b"0\r\n", "Transfer-Encoding: chunked"),
    ],
    ids=["head", "trailer"],
)
def test_endless_header_fields_are_cut_off(server: Server, begin: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(begin)
        # Fewer bytes than a head may have.
        with suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b"a: b\r\n" * 20)
        with suppress(ConnectionResetError):
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
            while connection.recv(4096):
                pass


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\r\n" * 10],
)
def test_what_is_no_http_is_answered_or_closed(server: Server, garbage: bytes) -> None:
    reply = server.exchange(garbage, and_close=True)

    assert reply == b"" or reply.startswith(b"HTTP/1.1 400 ")


def test_both_lengths_in_one_request_are_refused(server: Server) -> None:
    # Two readers who disagree about where a request ends can be played off.
    smuggled = post(
        "/user/list_clusters",
        b"0\r\n\r\nPOST /admin/remove_cluster HTTP/1.1\r\n\r\n",
        "Content-Length: 4",
        "Transfer-Encoding: chunked",
    )

    assert server.exchange(smuggled).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**31, 2**53 - 1])
def test_a_process_that_can_be_none_holds_nothing(server: Server, pid: int) -> None:
    inventory = server.inventory()
    asked = acquisition("odd")
    odd = replace(liveness.identify(), pid=pid)
    with pytest.raises(VipuRuleError, match="its number is from 1 to 4194304"):
        inventory.acquire(replace(asked, holder=replace(asked.holder, process=odd)))
    lease = inventory.acquire(asked).lease.id
    with pytest.raises(VipuRuleError, match="its number is from 1 to 4194304"):
        inventory.attach(lease, 0, odd)

    # It was none that the server looks for again and again, and fails.
    assert len(inventory.end_dead_leases()) == 0
    inventory.release(lease)


def test_clients_that_hang_up_in_the_middle_leave_nothing(server: Server) -> None:
    request = post("/user/acquire", b'{"request": ')
    for length in range(1, len(request), 7):
        with server.connect() as connection:
            connection.sendall(request[:length])

    inventory = server.inventory()
    lease = inventory.acquire(acquisition("P")).lease
    inventory.release(lease.id)


def test_1000_idle_connections_keep_nobody_out(server: Server) -> None:
    idle = [server.connect() for _ in range(900)]
    try:
        inventory = server.inventory()
        inventory.release(inventory.acquire(acquisition("P")).lease.id)
    finally:
        for connection in idle:
            connection.close()


# Sees other machines where the test connects from, and has 8 connections for all.
CROWDED = """
import sys
from poprun.vipu.server import http_server, serve
http_server.is_loopback = lambda host: host == "127.0.0.1"
serve._most_connections = lambda: 8
sys.exit(serve.main())
"""


def test_one_machine_cannot_take_the_connections_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vipu_servers.COMMAND", [sys.executable, "-c", CROWDED])

    def connect(source: str) -> socket.socket:
        place = ("127.0.0.1", server.port)
        connection = socket.create_connection(place, 200, (source, 0))
        opened.append(connection)
        return connection

    def is_answered(connection: socket.socket) -> bool:
        with suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(12) == b"HTTP/1.1 200"
        return False

    opened: list[socket.socket] = []
    with serving(tmp_path / "server.db") as server:
        hostile = [connect("127.0.0.66") for _ in range(4)]
        assert [is_answered(one) for one in hostile] == [True, True, False, False]
        assert is_answered(connect("127.0.0.67"))
        assert all(is_answered(connect("127.0.0.1")) for _ in range(3))
        # What has been closed does not count any more.
        for one in hostile:
            one.close()
        limit = time.monotonic() + 200
        while not is_answered(connect("127.0.0.66")):
            assert time.monotonic() < limit
        for one in opened:
            one.close()


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    one = post("/user/list_allocations", b"{}").replace(b"Connection: close\r\n", b"")
    other = post("/user/list_clusters", b"{}")

    replies = server.exchange(one * 50 + other)

    assert replies.count(b"HTTP/1.1 200 OK") == 51
    assert replies.count(b'"num_ilds"') == 1
    assert replies.endswith(b'"automatic":false,"hosts":[]}]')


def test_a_client_that_waits_for_leave_to_send_a_body_gets_it(server: Server) -> None:
    request = post("/user/list_allocations", b"{}", "Expect: 100-continue")
    with server.connect() as client, client.makefile("rb") as replies:
        client.sendall(request[:-2])
        assert replies.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert replies.readline() == b"\r\n"
        client.sendall(request[-2:])
        assert read_reply(replies) == b"HTTP/1.1 200 OK\r\n"
        assert replies.read() == b""


def test_a_request_for_another_protocol_is_answered_in_this_one(server: Server) -> None:
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + upgrade

    head, _, body = server.exchange(request).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close" in head.lower()
    assert body == b'{"status":"ok"}'


def test_a_head_alone_is_sent_to_those_who_ask_for_it(server: Server) -> None:
    request = b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    head, _, body = server.exchange(request).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert b"\r\ncontent-length: 15\r\n" in head
    assert body == b""


def test_the_access_log_has_a_line_for_each_request(tmp_path: Path) -> None:
    with serving(tmp_path / "server.db", "--access-log") as server:
        server.exchange(post("/user/list_allocations?x=1", b"{}"))
        server.exchange(post("/frogs", b"{}"))
        lines = server.log.read_text().splitlines()

    assert [re.sub(r"^127\.0\.0\.1:\d+", "C", line) for line in lines] == [
        'C - "POST /user/list_allocations?x=1 HTTP/1.1" 200',
        'C - "POST /frogs HTTP/1.1" 404',
    ]


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SCHEMA = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = post("/user/list_clusters", b" " * 6_000).replace(b"Connection: close\r\n", b"")


def memory(server: Server) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def send_what_is_taken(connection: socket.socket, data: bytes) -> int:
    """Send until all is sent or the server takes no more; return how much was."""
    left = memoryview(data)
    connection.settimeout(1.0)
    with suppress(TimeoutError):
        while left:
            left = left[connection.send(left) :]
    connection.settimeout(200.0)
    return len(data) - len(left)


@pytest.mark.parametrize("request_", [HEALTH, SCHEMA, LARGE])
def test_10_000_replies_that_are_not_read_take_no_memory(
    server: Server, request_: bytes
) -> None:
    before = memory(server)
    with server.connect() as hostile:
        sent = send_what_is_taken(hostile, request_ * 10_000)
        reply = server.exchange(post("/user/list_clusters", b"{}"))
        grown = memory(server) - before

    assert sent >= 100_000
    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert grown < 8 << 20


def test_a_client_that_reads_late_gets_all_its_replies(server: Server) -> None:
    number = 300
    with server.connect() as client:
        data = SCHEMA * number + post("/user/list_clusters", b"{}")
        writer = threading.Thread(target=client.sendall, args=(data,))
        writer.start()
        time.sleep(0.5)
        replies = client.makefile("rb")
        statuses = [read_reply(replies) for _ in range(number + 1)]
        writer.join()
        replies.close()

    assert statuses == [b"HTTP/1.1 200 OK\r\n"] * (number + 1)


def read_reply(stream: BinaryIO) -> bytes:
    """Read one reply, and return its first line."""
    first = stream.readline()
    length = 0
    while (line := stream.readline()) != b"\r\n":
        name, _, value = line.lower().partition(b":")
        length = int(value) if name == b"content-length" else length
    stream.read(length)
    return first


# All connections together may hold 1 MiB.
SMALL = """
import sys
from poprun.vipu.server import http_server, serve
http_server.MOST_HELD_BYTES = 1 << 20
sys.exit(serve.main())
"""


def test_those_who_hold_most_of_the_memory_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vipu_servers.COMMAND", [sys.executable, "-c", SMALL])
    unfinished = post("/user/list_clusters", b" " * 60_000, "Content-Length: 60001")
    with serving(tmp_path / "server.db") as server:
        modest = server.connect()
        modest.sendall(post("/user/list_clusters", b"{", "Content-Length: 2"))
        hostile = [server.connect() for _ in range(50)]
        for connection in hostile:
            connection.sendall(unfinished)

        wait_for(lambda: sum(map(is_closed, hostile)) >= 30, "closed connections")
        assert not all(map(is_closed, hostile))
        modest.sendall(b"}")
        assert modest.recv(100).startswith(b"HTTP/1.1 200 OK")
        for connection in (modest, *hostile):
            connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection that waits for a request."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def slow_server(tmp_path: Path, script: str = IMPATIENT) -> subprocess.Popen[str]:
    command = [COMMAND[0], "-c", script, "--port=0"]
    return subprocess.Popen(
        [*command, f"--database={tmp_path / 's.db'}"], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /user/get_clu",
        b"POST /user/list_clusters HTTP/1.1\r\nHost: localhost\r\nX: ",
        post("/user/list_clusters", b"{", "Content-Length: 2"),
        post("/user/list_clusters", b"1\r\n{\r\n", "Transfer-Encoding: chunked"),
    ],
    ids=["nothing", "path", "head", "body", "chunk"],
)
def test_a_request_that_does_not_come_to_an_end_is_given_up(
    tmp_path: Path, sent: bytes
) -> None:
    with slow_server(tmp_path) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("127.0.0.1:")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port), timeout=200) as client:
                client.sendall(sent)
                with suppress(ConnectionResetError):
                    assert client.recv(100) == b""
        finally:
            process.kill()


def test_a_stopped_server_gives_up_no_client_that_went_on(tmp_path: Path) -> None:
    request = post("/user/list_clusters", b"{}")
    # It has 60 s in which the server runs, and 3 s on the clock: its ticks are longer.
    script = IMPATIENT.replace(
        "REQUEST_TIMEOUT_S = 0.5", "REQUEST_TIMEOUT_S, http_server.TICK_S = 3, 0.005"
    )
    with slow_server(tmp_path, script) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("127.0.0.1:")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port), timeout=200) as client:
                client.sendall(request[:-1])
                time.sleep(0.5)
                process.send_signal(signal.SIGSTOP)
                time.sleep(4)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.5)
                client.sendall(request[-1:])

                assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
        finally:
            process.kill()


# All connections together may hold 8 MiB.
FLOODED = SMALL.replace("1 << 20", "8 << 20")


def test_a_flood_of_unfinished_requests_takes_no_more_memory_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vipu_servers.COMMAND", [sys.executable, "-c", FLOODED])
    body = b" " * 3_000_000
    unfinished = post("/user/list_clusters", body, "Content-Length: 4000000")
    with serving(tmp_path / "server.db") as server:
        before = memory(server)
        server.process.send_signal(signal.SIGSTOP)  # all of it comes at once
        hostile = [server.connect() for _ in range(200)]
        for connection in hostile:
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.send(unfinished)
        server.process.send_signal(signal.SIGCONT)
        reply = server.exchange(post("/user/list_clusters", b"{}"))

        assert reply.startswith(b"HTTP/1.1 200 OK")
        assert memory(server) - before < 64 << 20
        for connection in hostile:
            connection.close()


def test_a_client_that_does_not_read_its_reply_is_given_up(tmp_path: Path) -> None:
    with slow_server(tmp_path) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("127.0.0.1:")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port), timeout=200) as client:
                send_what_is_taken(client, SCHEMA * 1000)
                served = psutil.Process(process.pid)
                wait_for(
                    lambda: (
                        not [
                            c
                            for c in served.net_connections()
                            if c.status == "ESTABLISHED"
                        ]
                    ),
                    "the end of the connection",
                )
        finally:
            process.kill()


def test_a_bug_of_the_server_is_a_refusal_and_a_line_in_the_log(
    tmp_path: Path,
) -> None:
    broken = (
        "import sys; from poprun.vipu.server import serve; "
        "from poprun.vipu.inventory.embedded import EmbeddedInventory as E; "
        "E.list_clusters = lambda self: 1 / 0; sys.exit(serve.main())"
    )
    log = tmp_path / "log"
    with (
        open(log, "wb") as file,
        subprocess.Popen(
            [COMMAND[0], "-c", broken, "--port=0", f"--database={tmp_path / 's.db'}"],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("127.0.0.1:")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port), timeout=200) as client:
                client.sendall(post("/user/list_clusters", b"{}"))
                reply = client.makefile("rb").read()
        finally:
            process.kill()

    assert reply.startswith(b"HTTP/1.1 500 ")
    assert b"failed with ZeroDivisionError. Its log says where." in reply
    assert "The operation list_clusters failed." in log.read_text()


# Fails in its first look for dead holders, and makes a file in the second.
STUMBLING = """
import pathlib, sys
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.server import serve
looks = []
def look(self):
    looks.append(1)
    if len(looks) == 1:
        raise ZeroDivisionError
    pathlib.Path(self.location).with_name("looked").touch()
    return ()
EmbeddedInventory.end_dead_leases = look
sys.exit(serve.main())
"""


def test_a_bug_in_one_look_for_dead_holders_is_logged_and_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vipu_servers.COMMAND", [sys.executable, "-c", STUMBLING])
    with serving(tmp_path / "server.db") as server:
        wait_for(lambda: (tmp_path / "looked").exists(), "the second look")

        assert "Leases could not be ended." in server.log.read_text()


def test_the_limit_of_a_body_is_far_above_any_request() -> None:
    # The largest: a cluster of 16 384 named agents.
    assert application.MOST_BODY_BYTES > 16384 * 70
