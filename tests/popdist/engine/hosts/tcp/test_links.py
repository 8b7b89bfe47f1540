"""Links by TCP between threads of one process, and processes that may die."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from time import sleep

import numpy as np
import pytest

from popdist.engine.hosts.tcp import handshake
from popdist.engine.hosts.tcp.handshake import StrangerError
from popdist.engine.hosts.tcp.links import TcpLinks
from tests.host_jobs import free_port

KEY = b"a key of the job"


def linked(size: int) -> list[TcpLinks]:
    """Return the links of so many instances, which are threads of this process."""
    root = "127.0.0.1", free_port()
    with ThreadPoolExecutor(size) as threads:
        return list(
            threads.map(lambda rank: TcpLinks(rank, size, root, KEY), range(size))
        )


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        return connection, server.accept()[0]


def take(links: TcpLinks) -> tuple[int, bytes]:
    while (taken := links.take()) is None:
        sleep(0.001)
    return taken


def test_all_get_the_data_of_all() -> None:
    all_links = linked(5)

    with ThreadPoolExecutor(5) as threads:
        gathered = list(threads.map(lambda n: all_links[n].gather(b"%d" % n), range(5)))

    assert gathered == [[b"0", b"1", b"2", b"3", b"4"]] * 5


def test_short_messages_come_in_order_with_their_senders() -> None:
    one, two, three = linked(3)

    for number in range(100):
        two.post(2, b"%d" % number)
    three.post(1, b"x" * 3_000_000)

    assert [take(three) for _ in range(100)] == [(1, b"%d" % n) for n in range(100)]
    while two.take() is None:
        three.take()
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
    assert [links.failed for links in all_links] == [set()] * 3


# Another key; no instance of the job; one that takes the listener for another.
@pytest.mark.parametrize(
    ("key", "own", "to"), [(b"another key", 1, 0), (KEY, 2, 0), (KEY, 1, 1)]
)
def test_a_stranger_is_refused_by_both_ends(key: bytes, own: int, to: int) -> None:
    connection, accepted = connected()
    errors: list[type[Exception]] = []

    def answer() -> None:
        try:
            handshake.answer(accepted, KEY, 0, 2)
        except StrangerError as error:
            errors.append(type(error))
        accepted.close()

    thread = Thread(target=answer)
    thread.start()
    with connection, pytest.raises(ConnectionResetError):
        handshake.greet(connection, key, own, to)
    thread.join()
    assert errors == [StrangerError]


def test_a_listener_without_the_key_is_refused() -> None:
    connection, accepted = connected()
    with connection, accepted:
        accepted.sendall(bytes(16 + 32))

        with pytest.raises(StrangerError):
            handshake.greet(connection, KEY, 1, 0)


def test_both_ends_know_each_other_by_the_key() -> None:
    connection, accepted = connected()
    with connection, accepted, ThreadPoolExecutor(1) as threads:
        answered = threads.submit(handshake.answer, accepted, KEY, 0, 4)
        handshake.greet(connection, KEY, 3, 0)

        assert answered.result() == 3


DIES = """
import sys
from popdist.engine.hosts.tcp.links import TcpLinks
links = TcpLinks(2, 3, ("127.0.0.1", int(sys.argv[1])), b"a key of the job")
print("linked", flush=True)
sys.stdin.read()
"""


def test_all_learn_of_a_death_that_only_instance_0_can_detect() -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, f"{port}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process, ThreadPoolExecutor(2) as threads:
        root, other = threads.map(
            lambda rank: TcpLinks(rank, 3, ("127.0.0.1", port), KEY), range(2)
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"linked\n"
        assert root.take() is None
        assert root.failed == set()

        os.kill(process.pid, signal.SIGKILL)

        while 2 not in other.failed:
            root.take()
            other.take()
        assert root.failed == {2}
        # Nobody gets it, and nothing fails.
        other.post(2, b"late")
