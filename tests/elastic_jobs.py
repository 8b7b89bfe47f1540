"""Elastic jobs without poprun: a coordinator in its place, and real instances.

It starts the instances, tells them their members, and answers them as poprun does. Its
hosts are all this machine: instances of different hosts share no name for their memory.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from popdist import generations as messages
from popdist.environment import ELASTIC_JOINS, ELASTIC_MEMBERS, Instance
from poprun.wire.protocol import Decoder, pack
from tests.host_jobs import free_port
from tests.jobs import PROLOGUE, ROOT

Variables = dict[str, str | None]


class Ended(NamedTuple):
    """How an instance ended, and what it printed."""

    code: int
    out: str
    err: str


class _Process:
    """A process that was started as an instance, and its connection."""

    def __init__(self, index: int, process: "subprocess.Popen[bytes]", stem: Path):
        self.index, self.process, self.stem = index, process, stem
        self.joins = self.has_ended = False
        self.connection: socket.socket | None = None
        # The generation that it leaves, and its free ports.
        self.leaving: tuple[int, int, int] | None = None


class Coordinator:
    """A job with `per_host` instances on each host; instance i has `rows[i]` replicas.

    refusal: Why the job cannot re-form.
    least: With fewer instances, the job cannot re-form.
    """

    def __init__(
        self,
        folder: Path,
        per_host: Sequence[int],
        body: str,
        *,
        environ: Mapping[str, str] | None = None,
        rows: Sequence[int] = (),
        refusal: str = "",
        least: int = 1,
    ) -> None:
        self.folder, self.refusal, self.least = folder, refusal, least
        self.host_of = [host for host, n in enumerate(per_host) for _ in range(n)]
        self._rows = rows or [1] * len(self.host_of)
        self._body, self._more = dedent(body), dict(environ or {})
        self.generation = 0
        # The members of the present generation, and those that are to join.
        self.members: list[_Process] = []
        self.all: list[_Process] = []
        self._lock = threading.RLock()
        self._key = secrets.token_hex(8)
        self._name = f"test-{os.getpid()}-{secrets.token_hex(8)}"
        self._ended_file = folder / "ended.0"
        self._arena = secrets.token_hex(8)
        self._links = f"tcp://127.0.0.1:{free_port()}/{secrets.token_hex(8)}"
        self._store_port = free_port()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(b"\0" + self._name.encode())
        self._listener.listen(64)
        self._over = threading.Event()
        # How long instances took to re-form, from the first request to the answer.
        self.seconds: list[float] = []
        self._first_request = 0.0
        for target in (self._accept, self._watch):
            threading.Thread(target=target, daemon=True).start()

    def __enter__(self) -> "Coordinator":
        self._ended_file.touch()
        with self._lock:
            for index in range(len(self.host_of)):
                self._start(index, self._variables(range(len(self.host_of)), index))
            self.members = list(self.all)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for one in self.all:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
        self._listener.close()
        with self._lock:
            for one in self.all:
                if one.connection is not None:
                    one.connection.close()

    # --- What tests do

    def add(self, index: int) -> None:
        """Start an instance anew, which joins the others."""
        with self._lock:
            variables = self._variables(range(len(self.host_of)), index)
            # Only what it needs to ask: the rest must not be used.
            variables |= {ELASTIC_JOINS: "1", "POPDIST_ARENA": "none"}
            self._start(index, variables).joins = True

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process that is this instance now."""
        self.process(index).process.send_signal(number)

    def lose(self, index: int) -> None:
        """Take an instance for lost, as poprun does if its host does not answer."""
        with self._lock:
            one = self.process(index)
            one.has_ended = True
            if one.connection is not None:
                one.connection.shutdown(socket.SHUT_RDWR)
            self._note_end(one)

    def process(self, index: int) -> _Process:
        """Return the last process that was started as this instance."""
        return [one for one in self.all if one.index == index][-1]

    def output(self, index: int) -> str:
        """Return what the last process of this instance has printed."""
        return self.process(index).stem.with_suffix(".out").read_text()

    def living(self) -> list[_Process]:
        """Return the members that have not ended."""
        with self._lock:
            return [one for one in self.members if not one.has_ended]

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

    def _start(self, index: int, variables: Variables) -> _Process:
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
        one = _Process(index, process, stem)
        self.all.append(one)
        return one

    def _variables(self, indices: Sequence[int], index: int) -> Variables:
        """Return the variables of an instance in the present generation."""
        rows = [self._rows[i] for i in indices]
        hosts = [self.host_of[i] for i in indices]
        rank, host = list(indices).index(index), self.host_of[index]
        names = sorted(set(hosts))
        here = [r for r, h in enumerate(hosts) if h == host]
        local_rank, local_size = here.index(rank), len(here)
        instance = Instance(
            num_total_replicas=sum(rows),
            num_local_replicas=rows[rank],
            uniform=int(len(set(rows)) == 1),
            replica_index_offset=sum(rows[:rank]),
            local_instance_index=local_rank,
        )
        several = len(names) > 1
        members = ",".join(map(str, indices)) if self.generation else None
        return {
            ELASTIC_MEMBERS: members,
            **instance.encode(),
            "POPDIST_CONTROL": f"@{self._name}/{self._key}",
            "POPDIST_ARENA": f"{self._arena}-{host}",
            "POPDIST_ENDED_INSTANCES": str(self._ended_file),
            "POPDIST_INSTANCES_PER_HOST": (
                ",".join(str(hosts.count(h)) for h in names) if several else None
            ),
            "POPDIST_LINKS": self._links if several else None,
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(len(rows)),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(rows)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store_port),
            "TEST_INDEX": str(index),
        }

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection,), daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = Decoder()
        one: _Process | None = None
        while True:
            try:
                data = connection.recv(65536)
            except OSError:
                return
            if not data:
                if one is None:
                    connection.close()
                return
            for kind, fields in decoder.feed(data):
                with self._lock:
                    if kind == messages.ELASTIC:
                        version, key, index = int(fields[0]), fields[1], int(fields[2])
                        assert (version, key) == (1, self._key.encode())
                        one = self.process(index)
                        assert one.connection is None
                        one.connection = connection
                        answer = {"generation": self.generation}
                        answer |= {"refusal": self.refusal}  # type: ignore[dict-item]
                        _send(one, messages.ELASTIC_KNOWN, answer)
                    # Programs with gloo have another connection to poprun.
                    elif one is not None:
                        assert kind == messages.REFORM
                        self._note_reform(one, *map(int, fields))

    def _note_reform(self, one: _Process, leaving: int, *ports: int) -> None:
        assert one.leaving is None
        assert leaving == self.generation or one.joins, (leaving, self.generation)
        one.leaving = leaving, *ports  # type: ignore[assignment]
        if one.joins:
            why = f"Instance {one.index} joins."
            for member in self.living():
                if member.connection is not None:
                    _send(
                        member, messages.MEMBERS_CHANGE, {"kind": "added", "why": why}
                    )
        elif not self._first_request:
            self._first_request = time.monotonic()
        self._end_round()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            with self._lock:
                for one in self.all:
                    if not one.has_ended and one.process.poll() is not None:
                        one.has_ended = True
                        self._note_end(one)

    def _note_end(self, one: _Process) -> None:
        if one not in self.members:
            return
        with open(self._ended_file, "a") as file:
            file.write(f"{self.members.index(one)}\n")
        why = f"Instance {one.index} has ended."
        for member in self.living():
            if member.connection is not None:
                _send(member, messages.MEMBERS_CHANGE, {"kind": "lost", "why": why})
        self._end_round()

    def _end_round(self) -> None:
        living = self.living()
        joining = [one for one in self.all if one.joins and not one.has_ended]
        joining = [one for one in joining if one.leaving is not None]
        if any(one.leaving is None for one in living):
            return
        if not living or len(living) + len(joining) < self.least:
            for one in (*living, *joining):
                _refuse(one, "Too few instances are left.")
            return
        if self._first_request:
            self.seconds.append(time.monotonic() - self._first_request)
            self._first_request = 0.0
        self.generation += 1
        self.members = sorted([*living, *joining], key=lambda one: one.index)
        self._ended_file = self.folder / f"ended.{self.generation}"
        self._ended_file.touch()
        self._arena = secrets.token_hex(8)
        first = self.members[0].leaving
        assert first is not None
        self._links = f"tcp://127.0.0.1:{first[1]}/{secrets.token_hex(8)}"
        self._store_port = first[2]
        indices = [one.index for one in self.members]
        for one in self.members:
            one.joins, one.leaving = False, None
            variables = self._variables(indices, one.index)
            answer = {"generation": self.generation, "why": "Members have changed."}
            answer |= {"environ": variables}  # type: ignore[dict-item]
            _send(one, messages.REFORMED, answer)


# Any: the values of JSON.
def _send(one: _Process, kind: int, value: Any) -> None:
    assert one.connection is not None
    try:
        one.connection.sendall(pack(kind, json.dumps(value).encode()))
    except OSError:
        # It has just ended.
        return


def _refuse(one: _Process, why: str) -> None:
    assert one.connection is not None
    one.leaving = None
    try:
        one.connection.sendall(pack(messages.REFORM_REFUSED, why.encode()))
    except OSError:
        # As above.
        return


def wait_until(holds: Callable[[], bool], seconds: float = 200) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"It did not happen within {seconds} s."
        time.sleep(0.005)
