"""Links by TCP between threads of one process, and processes that may die."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import numpy as np
import pytest
from conftest import wait_for
from meeting import stop

from popdist.engine import _core
from popdist.engine.hosts.tcp import handshake, listener
from popdist.engine.hosts.tcp import links as links_module
from popdist.engine.hosts.tcp.handshake import StrangerError
from popdist.engine.hosts.tcp.links import (
    _GATHERED,
    _POSTED,
    AbandonedError,
    TcpLinks,
)
from popdist.engine.hosts.tcp.listener import TcpRoot
from popdist.errors import ArenaError, PeerLostError
from tests.host_jobs import free_port

KEY = b"a key of the job"


def new_root() -> TcpRoot:
    return TcpRoot("127.0.0.1", free_port(), KEY)


def linked(size: int) -> list[TcpLinks]:
    """Return the links of so many instances, which are threads of this process."""
    root = new_root()
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(lambda rank: TcpLinks(rank, size, root), range(size)))


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        return connection, server.accept()[0]


def post_until_its_end(links: TcpLinks, instance: int) -> None:
    while True:
        links.take()
        links._core.post(instance, 1, b"late")


def take(links: TcpLinks) -> tuple[int, bytes]:
    while (taken := links.take()) is None:
        sleep(0.001)
    return taken


def test_connections_to_an_instance_that_accepts_none_yet_are_queued() -> None:
    with listener.listen(("127.0.0.1", 0)) as listening:
        # Of a listening socket: the number of connections, and the most.
        info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        most = int.from_bytes(info[28:32], sys.byteorder)

    most_of_kernel = Path("/proc/sys/net/core/somaxconn").read_text()
    assert most == min(65536, int(most_of_kernel))


def test_all_get_the_data_of_all() -> None:
    all_links = linked(5)

    with ThreadPoolExecutor(5) as threads:
        gathered = list(threads.map(lambda n: all_links[n].gather(b"%d" % n), range(5)))

    assert gathered == [[b"0", b"1", b"2", b"3", b"4"]] * 5


def test_short_messages_come_in_order_with_their_senders() -> None:
    one, two, three = linked(3)

    for number in range(100):
        two.post(2, b"%d" % number)
    three.post(1, b"x" * 30_000_000)

    assert [take(three) for _ in range(100)] == [(1, b"%d" % n) for n in range(100)]
    while (taken := two.take()) is None:
        three.take()
    assert taken == (2, b"x" * 30_000_000)
    assert not three.is_sending()
    assert one.take() is None


def test_all_end_together_and_learn_what_was_sent_to_each() -> None:
    all_links = linked(3)
    sent = np.array([[0, 1, 2], [3, 0, 4], [5, 6, 0]], np.int64)

    counts = [links.begin_end(row) for links, row in zip(all_links, sent, strict=True)]
    received: dict[int, int] = {}
    while len(received) < 3:
        for rank, count in enumerate(counts):
            all_links[rank].take()
            if rank not in received and (number := count()) is not None:
                received[rank] = number

    assert received == {0: 8, 1: 7, 2: 6}
    # It may be asked for again, while messages are still under way.
    assert [count() for count in counts] == [8, 7, 6]
    for links in all_links:
        links.close()
    # As at the end of its process.
    all_links[0]._core.disown()
    for links in all_links[1:]:
        with pytest.raises(BrokenPipeError):
            post_until_its_end(links, 0)
        assert links.take() is None
        assert links.failed == {}


# Another key; no instance of the job; one that takes the listener for another.
@pytest.mark.parametrize(
    ("key", "own", "to"), [(b"another key", 1, 0), (KEY, 2, 0), (KEY, 1, 1)]
)
def test_a_stranger_is_refused_by_both_ends(key: bytes, own: int, to: int) -> None:
    connection, accepted = connected()
    errors: list[type[Exception]] = []

    def answer() -> None:
        try:
            handshake.examine(accepted, KEY, 0, 2)
        except StrangerError as error:
            errors.append(type(error))
        accepted.close()

    thread = Thread(target=answer)
    thread.start()
    with connection, pytest.raises(ConnectionResetError):
        handshake.greet(connection, key, own, to, never)
    thread.join()
    assert errors == [StrangerError]


def test_a_listener_without_the_key_is_refused() -> None:
    connection, accepted = connected()
    with connection, accepted:
        accepted.sendall(bytes(16 + 32))

        with pytest.raises(StrangerError):
            handshake.greet(connection, KEY, 1, 0, never)


def test_both_ends_know_each_other_by_the_key() -> None:
    connection, accepted = connected()
    with connection, accepted, ThreadPoolExecutor(1) as threads:
        greeted = threads.submit(handshake.greet, connection, KEY, 3, 0, never)
        instance, proof = handshake.examine(accepted, KEY, 0, 4)
        accepted.sendall(proof)

        assert instance == 3
        assert greeted.result() is None


def never() -> bool:
    return False


def test_a_proof_that_comes_byte_by_byte_has_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "_PROOF_SECONDS", 0.5)
    monkeypatch.setattr(handshake, "_CHECK_SECONDS", 0.05)
    connection, accepted = connected()
    with connection, accepted, ThreadPoolExecutor(1) as threads:
        examined = threads.submit(handshake.examine, accepted, KEY, 0, 4)
        sent = 0
        while not examined.done() and sent < 50:
            connection.sendall(b"x")
            sent += 1
            sleep(0.04)

        assert isinstance(examined.exception(), TimeoutError)


OTHER = """
import resource, sys
from popdist.engine.hosts.tcp import handshake
from popdist.engine.hosts.tcp.links import TcpLinks
from popdist.engine.hosts.tcp.listener import TcpRoot
if len(sys.argv) > 4:
    handshake._PROOF_SECONDS = 1000.0
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[4]),) * 2)
root = TcpRoot("127.0.0.1", int(sys.argv[1]), b"a key of the job")
links = TcpLinks(int(sys.argv[2]), int(sys.argv[3]), root)
print("linked", flush=True)
while sys.stdin.read(1):
    links.take()
"""


Popen = subprocess.Popen[bytes]


@contextmanager
def process_of(root: TcpRoot, rank: int, size: int, *limit: str) -> Iterator[Popen]:
    """Run an instance in a process of its own until the end of its stdin.

    Args:
        limit: The most descriptors that it may have; strangers then keep theirs for
            longer than the test takes.
    """
    argv = [sys.executable, "-c", OTHER, f"{root.port}", f"{rank}", f"{size}", *limit]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def await_linked(process: Popen) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"linked\n"


@contextmanager
def two_and_a_process() -> Iterator[tuple[TcpLinks, TcpLinks, Popen]]:
    """Yield instances 0 and 1, made in threads, and the process of instance 2."""
    root = new_root()
    with process_of(root, 2, 3) as process, ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda rank: TcpLinks(rank, 3, root), range(2))
        await_linked(process)
        yield first, second, process


def test_all_learn_of_a_death_that_only_instance_0_can_detect() -> None:
    with two_and_a_process() as (root, other, process):
        assert root.take() is None
        assert root.failed == {}

        os.kill(process.pid, signal.SIGKILL)

        while 2 not in other.failed:
            root.take()
            other.take()
        assert root.failed == {2: 0}
        # Nobody gets it, and nothing fails.
        other.post(2, b"late")


def test_an_instance_that_has_died_is_detected_by_the_first_message_to_it() -> None:
    with two_and_a_process() as (_, other, process):
        process.kill()
        process.wait()

        other.post(2, b"first")

        assert other.take() is None
        assert other.failed == {2: 0}


def test_an_instance_that_is_stopped_is_connected_to_once_it_goes_on() -> None:
    with two_and_a_process() as (_, other, process), ThreadPoolExecutor(1) as threads:
        stop(process.pid)
        prepared = threads.submit(other.prepare, 2, lambda: 0, never)
        sleep(1)
        assert not prepared.done()

        process.send_signal(signal.SIGCONT)

        prepared.result()
        other.take()
        assert other.failed == {}


def test_a_wait_for_a_stopped_instance_ends_with_its_group() -> None:
    with two_and_a_process() as (_, other, process), ThreadPoolExecutor(1) as threads:
        stop(process.pid)
        over: list[bool] = []
        prepared = threads.submit(other.prepare, 2, lambda: 0, lambda: bool(over))
        sleep(0.5)
        over.append(True)

        prepared.result()
        other.take()
        assert other.failed == {}


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_while_instances_connect_is_an_error(victim: int) -> None:
    root = new_root()
    gathering: list[TcpLinks] = []

    class Links(TcpLinks):
        def gather(self, data: bytes) -> list[bytes]:
            gathering.append(self)
            return super().gather(data)

    with process_of(root, victim, 3) as process, ThreadPoolExecutor(1) as threads:
        # The third one never comes.
        connecting = threads.submit(Links, 2 - victim, 3, root)
        while not (gathering and gathering[0]._core.is_ready(victim)):
            sleep(0.01)
        process.kill()

        with pytest.raises(PeerLostError, match=f"^Instance {victim} ended, or did"):
            connecting.result()


def test_instance_0_finds_a_death_after_it_has_the_data_of_all() -> None:
    root, other = linked(2)
    other._core.post(0, _GATHERED, b"1")
    # As at the death of its process.
    other._core.shut()
    while not root._core.failed():
        root._core.take(_POSTED)

    assert root.gather(b"0") == [b"0", b"1"]
    assert root.take() is None
    assert root.failed == {1: 0}


def test_the_death_of_instance_0_before_the_data_is_sent_is_named() -> None:
    root, other = linked(2)
    root._core.shut()
    while not other._core.failed():
        other._core.take(_POSTED)

    with pytest.raises(PeerLostError, match=r"^Instance 0 ended, or did") as lost:
        other.gather(b"1")

    assert lost.value.instances == (0,)


def test_instance_0_waits_for_a_port_that_another_process_has_for_a_moment() -> None:
    # The kernel gives it to no connection of another test meanwhile.
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        root = TcpRoot("127.0.0.1", taken.getsockname()[1], KEY)
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(TcpLinks, 0, 1, root)
            sleep(0.2)
            taken.close()

            assert first.result().gather(b"0") == [b"0"]


def test_a_port_that_another_process_keeps_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "_BIND_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ArenaError) as refusal:
            TcpLinks(0, 2, TcpRoot("127.0.0.1", port, KEY))

    assert str(refusal.value) == (
        f"Instance 0 cannot listen at 127.0.0.1:{port}, where the other instances are "
        "to reach it by TCP: Address already in use. The host must be an address of "
        "instance 0's host, and no other process may use the port. If poprun has "
        "chosen it, start the job again: it chooses another one."
    )


def test_a_name_that_is_an_address_of_loopback_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address])

    with pytest.raises(ArenaError, match="because node-1 has this address on its own"):
        TcpLinks(0, 2, TcpRoot("node-1", 1, KEY))


def test_a_socket_that_cannot_be_added_is_closed() -> None:
    links = _core.TcpLinks(0, 2)
    reading, writing = os.pipe()
    os.close(writing)

    with pytest.raises(OSError, match="Socket operation on non-socket"):
        links.add(1, reading)

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)


def test_a_socket_that_comes_after_the_end_of_the_links_is_closed() -> None:
    links = _core.TcpLinks(0, 3)
    links.shut()
    connection, accepted = connected()

    with connection:
        with pytest.raises(ConnectionAbortedError):
            links.add(1, accepted.detach())
        assert connection.recv(1) == b""

    # Messages to them fail at once.
    assert links.failed() == [(1, False), (2, False)]
    with pytest.raises(ConnectionResetError):
        links.post(2, _POSTED, b"late")


# --- Strangers on the same machine


FLOOD = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
address = "127.0.0.1", int(sys.argv[1])
data = bytes.fromhex(sys.argv[2])
while True:
    try:
        connections = [socket.create_connection(address)]
        break
    except OSError:
        pass
for _ in range(int(sys.argv[3])):
    connection = socket.create_connection(address)
    try:
        connection.sendall(data)
    except OSError:
        pass
    connections.append(connection)
print("flooded", flush=True)
sys.stdin.read()
"""


@contextmanager
def flood(root: TcpRoot, data: bytes, connections: int) -> Iterator[None]:
    """Keep so many connections of a stranger, who has sent the data over each."""
    argv = [sys.executable, "-c", FLOOD, f"{root.port}", data.hex(), f"{connections}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flooded\n"
        yield
        process.kill()


@pytest.mark.parametrize(
    "data", [b"", b"x" * 20, b"x" * 52, b"GET / HTTP/1.1\r\n" * 100]
)
def test_connections_of_strangers_keep_no_instance_away(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Connections end because there are too many of them, and not after a time.
    monkeypatch.setattr(handshake, "_PROOF_SECONDS", 1000.0)
    root = new_root()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(TcpLinks, 0, 2, root)
        others = threading.active_count()
        with flood(root, data, 2000):
            most = others + listener._MOST_UNPROVEN + 50
            wait_for(lambda: threading.active_count() <= most, "the end of threads")
            second = threads.submit(TcpLinks, 1, 2, root)

            second.result().post(0, b"here")
            assert take(first.result()) == (1, b"here")


def test_strangers_that_use_all_descriptors_keep_no_instance_away() -> None:
    root = new_root()
    with process_of(root, 0, 2, "60") as process, flood(root, b"", 200):
        links = TcpLinks(1, 2, root)
        await_linked(process)

        assert links.take() is None
        assert links.failed == {}


@pytest.fixture
def silent_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """The address of a host that answers nothing, which is known after 0.2 s."""
    monkeypatch.setattr(links_module, "SILENT_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        ExitStack() as own,
    ):
        address = server.getsockname()
        # The kernel answers no more connections than the program accepts.
        while True:
            one = own.enter_context(socket.socket())
            one.settimeout(0.2)
            try:
                one.connect(address)
            except TimeoutError:
                break
        yield address


def test_a_silent_host_of_instance_0_is_lost_after_its_limit(
    silent_address: tuple[str, int],
) -> None:
    host, port = silent_address
    failed: dict[int, int] = {}
    began = monotonic()
    with pytest.raises(PeerLostError) as error:
        TcpLinks(3, 4, TcpRoot(host, port, KEY, silence_limit=1), None, failed=failed)

    # No attempt counts for more than the silence after which it ends.
    assert monotonic() - began >= 1
    assert [*failed] == [*error.value.instances] == [0]
    assert str(error.value) == (
        f"Instance 0 at 127.0.0.1:{port} has not answered instance 3 on "
        f"{socket.gethostname()} for 1 s. The network between these hosts has failed, "
        "or a firewall blocks it: let their TCP connections through, or choose another "
        "network with poprun's --host-subnet."
    )


def test_a_host_that_may_not_be_up_yet_is_not_lost(
    silent_address: tuple[str, int],
) -> None:
    failed: dict[int, int] = {}
    until = monotonic() + 2
    root = TcpRoot(*silent_address, KEY)
    with pytest.raises(AbandonedError):
        TcpLinks(1, 2, root, None, lambda: monotonic() > until, failed)

    assert failed == {}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # No program listens at the port.
        pytest.param(ConnectionRefusedError, AbandonedError, id="refused"),
        pytest.param(TimeoutError, PeerLostError, id="silent"),
    ],
)
def test_only_unbroken_silence_counts(
    answer: type[OSError], expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def connect(*_: object) -> socket.socket:
        # As if the process was stopped for a minute each time, which counts no more.
        now[0] += 60
        raise TimeoutError if now[0] % 120 else answer

    monkeypatch.setattr(links_module, "monotonic", lambda: now[0])
    monkeypatch.setattr(links_module, "_ROOT_SECONDS", 100.0)
    monkeypatch.setattr(TcpLinks, "_connected", connect)
    root = TcpRoot("127.0.0.1", 1, KEY, silence_limit=9)
    with pytest.raises(expected):
        TcpLinks(1, 2, root, None, lambda: now[0] >= 600)
    assert (now[0] == 120) is (answer is TimeoutError)


def test_a_host_that_routers_report_as_unreachable_is_silent_between_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def connect(*_: object) -> socket.socket:
        # At once, as the reject rule of a firewall does.
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    def pause(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(links_module, "monotonic", lambda: now[0])
    monkeypatch.setattr(links_module, "sleep", pause)
    monkeypatch.setattr(TcpLinks, "_connected", connect)
    root = TcpRoot("127.0.0.1", 1, KEY, silence_limit=5)
    with pytest.raises(PeerLostError, match=r"has not answered instance 1 on .* for 5"):
        TcpLinks(1, 2, root, None, lambda: now[0] > 60)
    assert 5 <= now[0] < 6
