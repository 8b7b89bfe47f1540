"""Links of a bed are as slow, late and lossy as they are told to be.

Only the shortest time that a shaped link allows is compared: a busy machine is slower.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from beds.bed import Bed

MakeBed = Callable[..., Bed]

# It answers each datagram, and a connection when that has sent all.
SERVER = """
import socket, threading
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", 5000))
connections = socket.create_server(("", 5000))

def answer_datagrams():
    while True:
        datagrams.sendto(*datagrams.recvfrom(9000))

threading.Thread(target=answer_datagrams, daemon=True).start()
print("up", flush=True)
while True:
    connection, _ = connections.accept()
    while connection.recv(1 << 20):
        pass
    connection.send(b"all")
"""
CONNECT = """
import socket, sys, time
began = time.monotonic()
connection = socket.create_connection(("h1", 5000))
connection.sendall(bytes(int(sys.argv[1])))
connection.shutdown(socket.SHUT_WR)
assert connection.recv(3) == b"all"
print(time.monotonic() - began)
"""
# Answers keep their order, so one that is missing below the last was lost.
LOSE_A_DATAGRAM = """
import itertools, select, socket
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
answers = set()
for number in itertools.count():
    datagrams.sendto(str(number).encode(), ("h1", 5000))
    if select.select([datagrams], [], [], 0.01)[0]:
        answers.add(int(datagrams.recv(9000)))
    if answers and len(answers) <= max(answers):
        break
"""


@contextmanager
def server(bed: Bed) -> Iterator[None]:
    process = bed["h1"].start("python", "-c", SERVER, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"up\n"
    yield
    process.kill()
    process.communicate()


def seconds_to_send(bed: Bed, count: int) -> float:
    return float(bed.front.output("python", "-c", CONNECT, str(count)))


def test_a_rate_limits_what_a_link_carries(make_bed: MakeBed) -> None:
    bed = make_bed(hosts=2)
    bed.shape(rate="20mbit")
    with server(bed):
        # 128 KiB may pass at once.
        assert seconds_to_send(bed, 1_000_000) > 8 * (1_000_000 - 131_072) / 20e6


def test_a_delay_is_that_of_each_packet_from_host_to_host(make_bed: MakeBed) -> None:
    bed = make_bed(hosts=2)
    bed.shape(rate="1gbit", delay_ms=40)
    with server(bed):
        # There and back to connect, and again to send and have the answer.
        assert seconds_to_send(bed, 1) > 4 * 0.04
        # The bytes come whole, in frames of up to 64 KiB.
        assert seconds_to_send(bed, 2_000_000) > 4 * 0.04


def test_a_lossy_link_loses_its_share_and_connections_mend_it(
    make_bed: MakeBed,
) -> None:
    bed = make_bed(hosts=2)
    with server(bed):
        # The hosts know each other's addresses before datagrams are lost.
        seconds_to_send(bed, 1)
        bed["h1"].link.shape(loss=0.5)
        bed.front.output("python", "-c", LOSE_A_DATAGRAM)
        bed["h1"].link.shape(loss=0.01)
        seconds_to_send(bed, 2_000_000)


@pytest.mark.parametrize("shape", [{"delay_ms": 1}, {"rate": "1gbit"}])
def test_a_shaped_link_can_be_cut_mended_and_freed(
    make_bed: MakeBed, shape: dict[str, object]
) -> None:
    bed = make_bed(hosts=2)
    link = bed["h1"].link
    ssh = ("ssh", "h1", "hostname")
    link.shape(**shape)
    assert bed.front.output(*ssh) == "h1\n"
    link.cut()
    assert bed.front.run("ssh", "-oConnectTimeout=2", "h1", "true").returncode == 255
    link.mend()
    assert bed.front.output(*ssh) == "h1\n"
    link.shape()
    assert bed.front.output(*ssh) == "h1\n"
    assert "noqueue" in bed["h1"].output("tc", "qdisc", "show", "dev", "eth0")
