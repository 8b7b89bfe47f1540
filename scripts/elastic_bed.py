"""A job of popdist.elastic in a bed of three hosts, and its sums.

Each member adds up numbers of its own in each step, and writes a line about it.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from beds.bed import Bed  # noqa: E402
from beds.host import Host  # noqa: E402

FOLDER = "/root/state"
SIZE = 6
PROGRAM = """
import os, sys, time, zlib
from pathlib import Path
folder = Path(sys.argv[1])
# Before popdist joins the others, which gives this instance a rank among them.
index = int(os.environ["OMPI_COMM_WORLD_RANK"])
import numpy as np
import popdist
from popdist import elastic

attempt = int(os.environ["POPDIST_RESTART_COUNT"])
name = f"{index}-{attempt}-{os.uname().nodename}-{os.getpid()}"
base = np.arange(1000, 6000)
state = elastic.State(step=0, sums=np.zeros(6000, np.int64))

def crc():
    return zlib.crc32(state.sums) ^ state.step

@elastic.run
def work(state):
    (folder / f"member-{name}").touch()
    group = popdist.instance_group()
    while True:
        own = np.zeros(6000, np.int64)
        own[0] = 1 << index
        own[1] = (folder / "stop").exists() and group.rank == 0
        own[1000:] = base * (index + 1) + state.step
        total = group.all_reduce(own)
        members, stops = map(int, total[:2])
        indices = [i for i in range(64) if members >> i & 1]
        expected = base * sum(i + 1 for i in indices) + state.step * len(indices)
        is_right = len(indices) == group.size and (total[1000:] == expected).all()
        before = crc()
        state.sums += total
        state.step += 1
        with open(folder / f"sums-{name}", "a") as file:
            file.write(
                f"{time.monotonic()} {elastic.generation()} {state.step} {members}"
                f" {is_right:d} {before} {crc()}\\n"
            )
        if stops:
            return
        state.commit()
        time.sleep(0.02)

work(state)
"""


@dataclass(frozen=True, slots=True)
class Sum:
    """What a member has written about one sum.

    Attributes:
        at: The time, by the monotonic clock of the machine.
        process: The index, attempt, host and pid of the member's process.
        index: The member's number in the attempt, as that of all `members`.
        is_right: Whether the sum is that of the numbers of these members.
        before, after: Checksums of the member's state.
    """

    at: float
    process: str
    attempt: int
    generation: int
    step: int
    index: int
    members: frozenset[int]
    is_right: bool
    before: int
    after: int

    @property
    def host(self) -> str:
        return self.process.split("-")[2]

    @property
    def members_of(self) -> tuple[int, int]:
        """The generation of this sum among all of the job."""
        return self.attempt, self.generation


class Sums:
    """The lines of all members, read as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._all: list[Sum] = []

    def read(self) -> list[Sum]:
        for path in self._folder.glob("sums-*"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                # The last line may not be complete.
                lines, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(lines + newline)
            process = path.name.removeprefix("sums-")
            self._all += [_parse(line, process) for line in lines.decode().splitlines()]
        return self._all


def _parse(line: str, process: str) -> Sum:
    index, attempt, _, _ = process.split("-")
    at, *numbers = line.split()
    generation, step, members, is_right, before, after = map(int, numbers)
    bits = frozenset(i for i in range(members.bit_length()) if members >> i & 1)
    return Sum(
        *(float(at), process, int(attempt), generation, step, int(index), bits),
        *(is_right == 1, before, after),
    )


@dataclass(frozen=True, slots=True)
class Process:
    """The process of a member; `name` as in Sum.process."""

    name: str
    host: Host
    pid: int

    @property
    def is_alive(self) -> bool:
        return self._stat[0] not in "ZX"

    @property
    def parent(self) -> int:
        return int(self._stat[1])

    @property
    def _stat(self) -> list[str]:
        """Return the fields of /proc/PID/stat from the state on."""
        try:
            text = self.host.path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ["X"]
        return text.rpartition(") ")[2].split()


class ElasticBed:
    """A bed, a job in it that goes on without lost instances, and its sums."""

    def __init__(self, program: str = PROGRAM) -> None:
        self.bed = Bed(hosts=3, shared_home=True)
        self.folder = self.bed.front.path(FOLDER)
        self.folder.mkdir()
        (self.folder / "program.py").write_text(program)
        self.program = f"{FOLDER}/program.py"
        self.sums = Sums(self.folder)

    def start(
        self,
        log: int,
        *options: str,
        hosts: str = "h0,h1,h2",
        by_script: bool = False,
    ) -> None:
        """Start poprun with a job of SIZE instances on these hosts.

        Args:
            by_script: Whether a discovery script prints them.
        """
        self.print_hosts(hosts.split(","))
        named = ("--host", hosts)
        if by_script:
            named = ("--host-discovery-script", f"cat {FOLDER}/hosts")
        self.process = self.bed.front.start(
            *("poprun", "--mpirun", "local", *named, "-n", str(SIZE)),
            *("--events", f"{FOLDER}/events", "--grace", "1", *options),
            *("python3", self.program, FOLDER),
            stdout=log,
            stderr=log,
        )

    def print_hosts(self, names: Iterable[str]) -> None:
        """Let the discovery script print these hosts from now on."""
        draft = self.folder / "draft"
        draft.write_text("\n".join(names))
        draft.rename(self.folder / "hosts")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bed.close()

    def processes(self) -> list[Process]:
        """Return the processes that have been members and live, also on lost hosts."""
        found = []
        for path in self.folder.glob("member-*"):
            name = path.name.removeprefix("member-")
            _, _, host, pid = name.split("-")
            if self.bed[host].namespaces.is_alive:
                found.append(Process(name, self.bed[host], int(pid)))
        return [process for process in found if process.is_alive]

    def events(self, name: str) -> Iterator[dict[str, object]]:
        path = self.folder / "events"
        for line in path.read_text().splitlines() if path.exists() else []:
            # The last line may not be complete.
            if line.endswith("}") and (event := json.loads(line))["event"] == name:
                yield event

    def wrong_sums(self) -> list[str]:
        """Return what is wrong with the sums, by what poprun says of the members.

        All sums of a generation have its members; all its members have the same state
        before and after a step, and continue with a state that was there before.
        """
        sums = self.sums.read()
        wrong = [f"a wrong sum: {one}" for one in sums if not one.is_right]
        members = {
            (event["attempt"], event["generation"]): frozenset(event["members"])  # type: ignore[call-overload]
            for event in self.events("members_changed")
        }
        states: dict[tuple[int, int, int], tuple[int, int]] = {}
        known: set[tuple[int, int]] = set()
        for one in sums:
            expected = members.setdefault(one.members_of, one.members)
            if one.members != expected or one.index not in expected:
                wrong.append(f"not the members {sorted(expected)}: {one}")
            state = one.before, one.after
            if states.setdefault((*one.members_of, one.step), state) != state:
                wrong.append(f"another member had another state: {one}")
            known.add((one.attempt, one.after))
        for one in sums:
            if one.step > 1 and (one.attempt, one.before) not in known:
                wrong.append(f"a state that was lost or has changed: {one}")
        return wrong


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether a condition holds within some seconds."""
    ends_by = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= ends_by:
            return False
        time.sleep(0.02)
    return True


def pids(host: Host, words: str) -> list[int]:
    """Return the processes of jobs on a host with these words in their argv."""
    return [int(p.partition(":")[0]) for p in host.processes() if words in p]
