"""Members of a group as processes of their own, each with a few lines to run."""

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

from popdist.engine.meet.group_name import address_of
from popdist.engine.meet.joiner import Joiner
from popdist.engine.meet.messages import Member

ROOT = Path(__file__).parent.parent

# What follows a report of a long wait on stderr.
STACKS = (
    r"popdist: its Python stacks \(PID \d+\):\n"
    r"(?:(?:Current thread|Thread|  [<F]).*\n|\n)+"
)

# What every member runs. Its own lines take the place of BODY.
PROGRAM = """
import os, resource, signal, sys, time
from popdist.engine import meet
from popdist.engine.meet import leader
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.shm import arena
from popdist.errors import PeerLostError, PopdistError
from tests.meeting import report_hellos
name, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
report_hellos(int(sys.argv[4]))
# Member 0 answers all that come after a failure, however long they take to start.
leader.LINGER = 1000

def initialise(memory):
    memory[:5] = b"hello"

def join(nbytes=65536, layout="one", memory=None, **changes):
    settings = dict(instances=range(size), timeout=200, stall=200)
    meeting = Meeting(name, rank, **settings | changes)
    memory = memory or (lambda pids: arena.Memory(nbytes, (0, 0), initialise))
    return arena.share_arena(meeting, memory, layout)

try:
BODY
except PeerLostError as error:
    print(f"PeerLostError{error.instances}: {error}")
except PopdistError as error:
    print(f"{type(error).__name__}: {error}")
"""


def report_hellos(descriptor: int) -> None:
    """Let this member write a byte after each hello that it sends.

    In a module of its own: a function that stays in Joiner must not keep the names of
    the member's own lines alive until the interpreter has ended.
    """
    os.set_inheritable(descriptor, False)
    enter = Joiner.enter

    def enter_and_report(joiner: Joiner) -> tuple[int, list[Member]]:
        os.write(descriptor, b".")
        return enter(joiner)

    Joiner.enter = enter_and_report  # type: ignore[method-assign]


class Ended(NamedTuple):
    """How a member ended, and what it said."""

    code: int
    out: str
    err: str


class Meeting:
    """Starts members of one group, and ends what is left of them."""

    def __init__(self, size: int, name: str = "") -> None:
        self.size = size
        self.name = name or f"test-{os.getpid()}-{secrets.token_hex(4)}"
        self._members: list[subprocess.Popen[str]] = []
        # A byte for every hello that a member has sent.
        self._hellos, self._hello_sent = os.pipe2(os.O_NONBLOCK)
        self._hellos_read = 0

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            if member.poll() is None:
                member.kill()
            member.communicate()
        os.close(self._hellos)
        os.close(self._hello_sent)

    def start(self, rank: int, body: str = "join()") -> int:
        """Start a member, and return its process."""
        program = PROGRAM.replace("BODY", indent(dedent(body), "    "))
        sent = self._hello_sent
        arguments = [self.name, str(rank), str(self.size), str(sent)]
        member = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            pass_fds=[sent],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._members.append(member)
        return member.pid

    def finish(self) -> list[Ended]:
        """Return how the members ended, in the order of their start."""
        ended = []
        for member in self._members:
            out, err = member.communicate(timeout=240)
            ended.append(Ended(member.returncode, out, err))
        return ended

    def wait_for_end(self, started: int) -> None:
        """Wait for the member that was started as number `started`, from 0."""
        self._members[started].wait(200)

    def wait_for_line(self, started: int) -> None:
        """Wait until that member has printed a line, and take it."""
        output = self._members[started].stdout
        assert output is not None
        assert output.readline()

    def wait_for_report(self, started: int) -> None:
        """Wait until that member has printed something on stderr."""
        assert select.select([self._members[started].stderr], [], [], 200)[0]

    def sockets(self) -> int:
        """Return how many sockets member 0 has: one that listens, one per joiner."""
        lines = Path("/proc/net/unix").read_text().splitlines()
        address = address_of(self.name)[1:].decode()
        return sum(line.endswith(f"@{address}") for line in lines)

    def wait_for_joiners(self, joiners: int) -> None:
        """Wait until so many members are connected, and have sent who they are.

        The end of a member is the end of an unknown process before that.
        """
        wait_until(
            lambda: self.sockets() == 1 + joiners and self._hellos_sent() >= joiners
        )

    def _hellos_sent(self) -> int:
        with suppress(BlockingIOError):
            self._hellos_read += len(os.read(self._hellos, 1000))
        return self._hellos_read


def run(size: int, body: str, others: Mapping[int, str] | None = None) -> list[Ended]:
    """Run a whole group, where some members may have lines of their own."""
    with Meeting(size) as meeting:
        for rank in range(size):
            meeting.start(rank, (others or {}).get(rank, body))
        return meeting.finish()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline, "It did not happen within 200 s."
        time.sleep(0.01)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
