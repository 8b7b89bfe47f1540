"""Links by TCP between hosts, one of which is cut off or stopped."""

import select
import signal
import subprocess
from collections.abc import Callable
from time import sleep

from beds.bed import Bed
from beds.host import Host

PROGRAM = """
import sys, time
from popdist.engine.hosts.tcp.links import TcpLinks
links = TcpLinks(int(sys.argv[1]), 2, ("10.31.0.1", 29600), b"a key of the job")
print("linked", flush=True)
while not links.failed:
    links.take()
    time.sleep(0.05)
print(*links.failed, flush=True)
"""


def start(host: Host, rank: int) -> "subprocess.Popen[bytes]":
    argv = "python3", "-c", PROGRAM, f"{rank}"
    process: subprocess.Popen[bytes] = host.start(*argv, stdout=subprocess.PIPE)
    return process


def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout
    return process.stdout.readline()


def test_both_ends_detect_that_a_host_is_cut_off(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=2)
    processes = [start(bed.front, 0), start(bed["h1"], 1)]
    assert [line_of(one) for one in processes] == [b"linked\n"] * 2

    bed["h1"].link.cut()

    assert [line_of(one) for one in processes] == [b"1\n", b"0\n"]


def test_a_process_that_is_stopped_is_not_dead(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=2)
    processes = [start(bed.front, 0), start(bed["h1"], 1)]
    assert [line_of(one) for one in processes] == [b"linked\n"] * 2

    processes[1].send_signal(signal.SIGSTOP)
    sleep(3)

    assert select.select([processes[0].stdout], [], [], 0)[0] == []
    processes[1].send_signal(signal.SIGKILL)
    assert line_of(processes[0]) == b"1\n"
