"""When the other end of a connection is lost, and when it only says nothing."""

import os
import socket
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from poprun.reach.connections import silence
from poprun.reach.connections.silence import (
    Silence,
    acknowledges_nothing,
    ends_of,
    peer_of_process_is_gone,
    repeats,
)

HERE, THERE = "10.0.0.1 4000", "10.0.0.2 22"


@pytest.fixture
def unacknowledged(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what sets how often the kernel has repeated something."""

    def set_number(number: int) -> None:
        monkeypatch.setattr(silence, "repeats", lambda own, peer: number)

    set_number(0)
    return set_number


def test_both_ends_are_in_the_variable_of_ssh() -> None:
    assert ends_of("10.0.0.1 4000 10.0.0.2 22") == (HERE, THERE)
    assert ends_of("") == ("", "")


def test_silence_alone_is_no_loss(unacknowledged: Callable[[int], None]) -> None:
    link = Silence(acknowledges_nothing(HERE, THERE), 0.0)

    assert not any(link.is_lost(float(now)) for now in range(3600))


def test_a_peer_that_acknowledges_nothing_is_lost_after_a_silence(
    unacknowledged: Callable[[int], None],
) -> None:
    unacknowledged(5)
    link = Silence(acknowledges_nothing(HERE, THERE), 0.0)
    link.note_heard(100.0)

    assert not link.is_lost(107.9)
    assert link.is_lost(108.1)


def test_a_peer_that_is_heard_again_is_not_lost(
    unacknowledged: Callable[[int], None],
) -> None:
    unacknowledged(5)
    link = Silence(acknowledges_nothing(HERE, THERE), 0.0)
    link.note_heard(8.5)

    assert not link.is_lost(9.0)


def test_without_a_tcp_connection_nothing_is_lost_by_silence() -> None:
    link = Silence(acknowledges_nothing("", ""), 0.0)

    assert not link.is_lost(1e6)
    assert link.deadline() < inf


def test_something_is_sent_when_nothing_else_is() -> None:
    link = Silence(acknowledges_nothing(HERE, THERE), 0.0)

    assert not link.must_send(1.9)
    assert link.must_send(2.0)
    link.note_sent(2.0)
    assert not link.must_send(3.9)
    assert link.deadline() == 4.0


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_peer_that_acknowledges_is_found_in_the_kernels_table(
    family: int, address: str
) -> None:
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        with socket.create_connection((address, port)) as client:
            own = f"{address} {client.getsockname()[1]}"
            client.send(b"nobody reads this")

            assert repeats(own, f"{address} {port}") == 0


def test_an_expected_loss_is_noticed_after_a_short_silence() -> None:
    link = Silence(lambda: True, 0.0)
    link.expect_loss(1.0)
    link.note_heard(2.0)

    assert not link.is_lost(2.4)
    assert link.is_lost(2.6)


def test_a_suspected_peer_is_lost_after_a_shorter_silence(
    unacknowledged: Callable[[int], None],
) -> None:
    link = Silence(acknowledges_nothing(HERE, THERE), 0.0)
    link.suspect()

    assert not link.is_lost(6.0)  # it has acknowledged all
    unacknowledged(5)
    assert link.is_lost(6.5)


def test_a_suspected_peer_that_is_only_slow_is_not_lost(
    unacknowledged: Callable[[int], None],
) -> None:
    unacknowledged(5)
    link = Silence(acknowledges_nothing(HERE, THERE), 0.0)
    link.suspect()

    assert not link.is_lost(4.9)
    link.note_heard(4.9)
    assert not link.is_lost(12.8)
    assert link.is_lost(13.0)


def test_a_process_whose_peers_acknowledge_has_lost_none() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.send(b"nobody reads this")

        assert not peer_of_process_is_gone(os.getpid())


def test_a_process_whose_peer_does_not_acknowledge_has_lost_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as sock:
        inode = os.stat(sock.fileno()).st_ino
        row = f"0: A B 01 0:0 0:0 00000005 0 0 {inode} 1"
        table = tmp_path / "tcp"
        table.write_text(f"header\n{row}\n")
        monkeypatch.setattr(silence, "TABLES", [(str(table), 4)])

        assert peer_of_process_is_gone(os.getpid())
