"""A bed is removed on every way out of its owner."""

import os
import random
import subprocess
import sys
from contextlib import ExitStack, suppress

import psutil
import pytest
from beds.rights import need_beds
from conftest import ROOT, wait_for
from deaths import command_line

# It runs commands in sessions of their own, in the background, and on another host.
OWNER = """
import os, sys
from beds.bed import Bed

bed = Bed(hosts=2)
sleep = ("sleep", sys.argv[1])
bed.front.output("sh", "-c", "setsid $0 $1 >/dev/null 2>&1 &", *sleep)
bed.front.start("ssh", "h1", *sleep)
while not any("sleep" in process for process in bed["h1"].processes()):
    pass
for host in bed.hosts:
    for kind in "ipc mnt net pid uts".split():
        print(f"/proc/{host.init_pid}/ns/{kind}")
print("end", flush=True)
sys.stdin.readline()
"""
ENDS = {
    "closed": "bed.close()",
    "exception": "raise RuntimeError",
    "exit": "os._exit(0)",
    "killed": "os.kill(os.getpid(), 9)",
}


KINDS = ("ipc", "mnt", "net", "pid", "uts")


def namespaces_in_use() -> set[str]:
    found = set()
    for pid in psutil.pids():
        with suppress(OSError):
            found |= {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS}
    return found


def processes_with(word: str) -> list[list[str]]:
    lines = [command_line(pid) for pid in psutil.pids()]
    return [words for words in lines if word in " ".join(words)]


@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_a_bed_outlives_its_owner(end: str) -> None:
    need_beds()
    interfaces = os.listdir("/sys/class/net")
    word = f"98765.{random.randrange(10**12)}"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER + ENDS[end], word],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with owner, ExitStack() as held:
        assert owner.stdout
        paths = [line.strip() for line in iter(owner.stdout.readline, "end\n")]
        namespaces = {os.readlink(path) for path in paths}
        # The kernel gives their numbers to no others while they are open.
        for path in paths:
            held.enter_context(open(path))
        assert len(namespaces) == 2 * len(KINDS)
        assert namespaces <= namespaces_in_use()
        # The owner, the one in the background, ssh, its shell, and its command. While a
        # process execs its command line is empty.
        wait_for(lambda: len(processes_with(word)) >= 4, "the bed's processes")
        assert os.listdir("/sys/class/net") == interfaces
        owner.communicate("\n", timeout=200)

        wait_for(lambda: not processes_with(word), "the end of the bed's processes")
        wait_for(lambda: not namespaces & namespaces_in_use(), "the end of namespaces")
