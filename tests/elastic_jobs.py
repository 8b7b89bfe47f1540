"""Elastic jobs without poprun: a coordinator in its place, and real instances.

It starts instances when a test asks for them. Their members, and the messages to them,
follow from poprun's own rules. Its hosts are all this machine: instances of different
hosts share no name for their memory.
"""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple
from unittest.mock import Mock

from popdist.environment import ELASTIC_JOINS, ELASTIC_MEMBERS, Instance
from poprun.host.local_host import LocalHost
from poprun.job.values import HostJob
from poprun.output import waiter
from poprun.supervise import generations
from poprun.supervise.hosts import Hosts
from poprun.supervise.member_changes import MemberChanges
from poprun.supervise.membership import (
    BeginGeneration,
    KillInstance,
    LetGo,
    first_members,
)
from poprun.wire.events import Event, Exited, HostJoins, HostLeaves, HostLost, Tick
from tests.fake_hosts import exited
from tests.host_jobs import free_port
from tests.jobs import PROLOGUE, ROOT

Variables = dict[str, str | None]


class Ended(NamedTuple):
    """How an instance ended, and what it printed."""

    code: int
    out: str
    err: str


class _Process:
    """A process that was started as an instance."""

    def __init__(self, index: int, process: "subprocess.Popen[bytes]", stem: Path):
        self.index, self.process, self.stem = index, process, stem
        self.has_ended = False


class Coordinator:
    """A job with `per_host` instances on each host; each has one replica.

    refusal: Why the job cannot re-form.
    least: With fewer instances, the job cannot re-form.
    most: No host joins with which the job would have more instances.
    """

    def __init__(
        self,
        folder: Path,
        per_host: Sequence[int],
        body: str,
        *,
        environ: Mapping[str, str] | None = None,
        refusal: str = "",
        least: int = 1,
        most: float = inf,
    ) -> None:
        self.folder = folder
        self.host_of = [host for host, n in enumerate(per_host) for _ in range(n)]
        self._body, self._more = dedent(body), dict(environ or {})
        self.all: list[_Process] = []
        names = [f"host-{host}" for host in self.host_of]
        self.state = first_members(names, refusal=refusal, least=least, most=most)
        self._job = HostJob(
            name="here",
            ranks=range(len(names)),
            num_instances=len(names),
            control=f"@test-{os.getpid()}-{secrets.token_hex(8)}/key",
            mark="",
            directory=str(folder),
            cache="",
            merge_stderr=False,
            stdin_ranks=[],
            environment={},
        )
        self._new_names(free_port(), free_port())
        self._host = LocalHost(self._job, [b""] * len(names), Mock())
        hosts = Hosts([self._host])
        self._changes = MemberChanges(hosts, Mock(), Mock(), self._environs)
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Coordinator":
        self._host.listen()
        self._host.start(self._note, Mock(), Mock())
        for index in self.state.members:
            self._start(index, self._variables(self.state.members, index))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for one in self.all:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
        self._host.close()

    # --- What tests do

    def add(self, index: int, *, with_host: bool = False) -> None:
        """Start an instance that has ended anew; it joins the others.

        with_host: Let its host join, which was lost.
        """
        wait_until(lambda: self.process(index).has_ended)
        variables = self._variables(range(len(self.host_of)), index)
        # Only what it needs to ask: the rest must not be used.
        variables |= {ELASTIC_JOINS: "1", "POPDIST_ARENA": "none"}
        with self._lock:
            state, host = self.state, self.state.hosts[index]
            self.state = replace(
                state,
                living=state.living | {index},
                newcomers=state.newcomers | {index},
            )
            if with_host:
                self._note(HostJoins(host=host, ranks=(index,)))
            self._start(index, variables)

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process that is this instance now."""
        self.process(index).process.send_signal(number)

    def lose(self, index: int) -> None:
        """Take an instance for lost, as poprun does if its host does not answer."""
        with self._lock:
            self.process(index).has_ended = True
            members = self._host._members
            members.receive(members._links[index], None)
            host = self.state.hosts[index]
            self._note(HostLost(host=host, ranks=(index,), why="it does not answer"))

    def let_leave(self, index: int) -> None:
        """Let the next generation be without an instance, as if its host left."""
        host = self.state.hosts[index]
        why = f"the host {host} is named no longer"
        with self._lock:
            self._note(HostLeaves(host=host, ranks=(index,), why=why))

    def process(self, index: int) -> _Process:
        """Return the last process that was started as this instance."""
        return [one for one in self.all if one.index == index][-1]

    def output(self, index: int) -> str:
        """Return what the last process of this instance has printed."""
        return self.process(index).stem.with_suffix(".out").read_text()

    @property
    def generation(self) -> int:
        return self.state.generation

    def finish(self, seconds: float = 200) -> list[Ended]:
        """Wait until all processes have ended, and return how, in order of start."""
        until = time.monotonic() + seconds
        for one in self.all:
            one.process.wait(max(0.1, until - time.monotonic()))
        return [
            Ended(
                one.process.returncode,
                one.stem.with_suffix(".out").read_text(),
                one.stem.with_suffix(".err").read_text(),
            )
            for one in self.all
        ]

    # --- What poprun does

    def _start(self, index: int, variables: Variables) -> None:
        stem = self.folder / f"{len(self.all)}-{index}"
        environ = {**os.environ, **self._more}
        environ |= {n: v for n, v in variables.items() if v is not None}
        with (
            open(stem.with_suffix(".out"), "wb") as out,
            open(stem.with_suffix(".err"), "wb") as err,
        ):
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", PROLOGUE + self._body],
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.all.append(_Process(index, process, stem))

    def _variables(self, indices: Sequence[int], index: int) -> Variables:
        """Return the variables of an instance in the present generation."""
        hosts = [self.host_of[i] for i in indices]
        rank, host = list(indices).index(index), self.host_of[index]
        names = sorted(set(hosts))
        here = [r for r, h in enumerate(hosts) if h == host]
        local_rank, local_size = here.index(rank), len(here)
        instance = Instance(
            num_total_replicas=len(indices),
            num_local_replicas=1,
            replica_index_offset=rank,
            local_instance_index=local_rank,
        )
        several = len(names) > 1
        return {
            **instance.encode(),
            "POPDIST_CONTROL": self._job.control,
            "POPDIST_ARENA": f"{self._arena}-{host}",
            "POPDIST_ENDED_INSTANCES": self._job.ended_file(self.generation),
            "POPDIST_INSTANCES_PER_HOST": (
                ",".join(str(hosts.count(h)) for h in names) if several else None
            ),
            "POPDIST_LINKS": self._links if several else None,
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(len(indices)),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(indices)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store_port),
            "TEST_INDEX": str(index),
        }

    def _new_names(self, links_port: int, store_port: int) -> None:
        """Choose the names under which the members of a generation meet."""
        self._arena = secrets.token_hex(8)
        self._links = f"tcp://127.0.0.1:{links_port}/{secrets.token_hex(8)}"
        self._store_port = store_port

    def _environs(self, new: BeginGeneration) -> dict[int, Variables]:
        """Return the variables of the members of a generation that begins."""
        self._new_names(*new.ports[new.members[0]])
        members = ",".join(map(str, new.members))
        own = {ELASTIC_MEMBERS: members, ELASTIC_JOINS: None}
        return {i: self._variables(new.members, i) | own for i in new.members}

    def _serve(self) -> None:
        while not self._over.wait(0.005):
            with self._lock:
                now = time.monotonic()
                waiter.serve(self._host.interests(now), now)
                self._host.tick(now)
                for one in self.all:
                    code = one.process.poll()
                    if not one.has_ended and code is not None:
                        one.has_ended = True
                        self._note(exited(one.index, -code if code < 0 else code << 8))
                self._note(Tick())

    def _note(self, event: Event) -> None:
        """Do what follows from an event for the members."""
        self.state, answers = generations.decide(self.state, event, time.monotonic())
        if isinstance(event, Exited | HostLost):
            ranks = event.ranks if isinstance(event, HostLost) else (event.rank,)
            for rank in ranks:
                self._changes.note_end(rank, self.state)
        for answer in answers:
            if isinstance(answer, KillInstance):
                self.kill(answer.rank)
            # The host of an instance that leaves is that of the others here.
            elif not isinstance(answer, LetGo):
                self._changes.act(answer)


def wait_until(holds: Callable[[], bool], seconds: float = 200) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"It did not happen within {seconds} s."
        time.sleep(0.005)
