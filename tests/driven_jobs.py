"""A job without processes: guard and shims are socket ends that the test holds."""

import os
import resource
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from job_clients import make_clients

from poprun.helpers import own_process, processes
from poprun.host.host_link import HostLink
from poprun.host.local_host import LocalHost
from poprun.job.values import HostJob, Job
from poprun.output.router import OutputRouter
from poprun.output.routes import Routes
from poprun.supervise.attempt_end import AttemptEnd
from poprun.supervise.guard_start import StartedGuard
from poprun.supervise.job_state import Phase
from poprun.supervise.mpirun_process import MpirunProcess
from poprun.supervise.supervisor import Supervisor
from poprun.wire import protocol
from poprun.wire.channel import Channel, connect
from poprun.wire.events import Event

Messages = list[tuple[int, list[bytes]]]
MPIRUN_PID = 4_200_000  # above what the kernel gives
# How long the loop of one test may run.
LIMIT_S = 200.0
GUARD_PID = 4_300_000


class Peer:
    """The far end of a socket to poprun."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def say(
        self, kind: int, *fields: bytes | int, descriptors: Sequence[int] = ()
    ) -> None:
        self.channel.send(protocol.pack(kind, *fields), tuple(descriptors))

    def heard(self) -> Messages:
        """Return what poprun has sent so far."""
        messages: Messages = []
        while select.select([self.channel], [], [], 0)[0]:
            received = self.channel.receive()
            if received is None:
                break
            messages += received
        return messages

    def is_cut_off(self) -> bool:
        return self.channel.receive() is None


class Shim(Peer):
    """What stands for the shim of one instance, and for the instance."""

    def __init__(self, job: Job, rank: int, *, key: bytes | None = None) -> None:
        sock, own_key = connect(job.control.encode())
        super().__init__(Channel(sock))
        self.rank = rank
        self.writers: dict[str, int] = {}
        version, pid, start = protocol.VERSION, MPIRUN_PID + 1 + rank, 1
        self.say(protocol.HELLO, version, key or own_key, rank, b"here", pid, start)

    def start(self) -> None:
        readers = []
        for stream in ("stdout", "stderr"):
            reader, self.writers[stream] = os.pipe()
            readers.append(reader)
        self.say(protocol.STARTED, 1000 + self.rank, 1, b"0,1", 1, descriptors=readers)
        for reader in readers:
            os.close(reader)

    def exit(self, status: int, by: bytes = protocol.BY_ITSELF) -> None:
        self.say(protocol.EXITED, status, 5, 0, 0, 0, by, 0)

    def end(self) -> None:
        """Close the streams, and report that nothing is left."""
        for writer in self.writers.values():
            os.close(writer)
        self.writers.clear()
        self.say(protocol.CLEAN, 0)


def part_of(job: Job, ranks: range) -> HostJob:
    """Return the part of a job that runs on its own host."""
    return HostJob(
        name="here",
        ranks=ranks,
        num_instances=len(job.specs),
        control=job.control,
        mark=job.mark,
        directory=job.directory,
        cache="",
        merge_stderr=job.routes.merged,
        has_mpi=job.has_mpi,
        grace=job.grace,
        stdin_ranks=[],
        environment={},
    )


class LimitedHost(LocalHost):
    """A local host whose loop fails when it runs for too long."""

    def __init__(self, job: Job, mpirun: MpirunProcess, ranks: range) -> None:
        specs = [job.specs[rank] for rank in ranks]
        super().__init__(part_of(job, ranks), specs, mpirun.add_shim)
        self._ends_by = time.monotonic() + LIMIT_S

    def deadline(self, now: float) -> float:
        return min(super().deadline(now), self._ends_by)

    def tick(self, now: float) -> None:
        assert now < self._ends_by, f"the loop has not ended within {LIMIT_S} s"
        super().tick(now)


class Driven:
    """A local host and its loop; the test plays guard and shims, turn by turn."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        size: int,
        *,
        ranks: range | None = None,
        others: Sequence[HostLink] = (),
        **job: object,
    ) -> None:
        self.wake, self._signals = os.pipe()
        # Dispositions and children belong to the process that runs the tests.
        monkeypatch.setattr(own_process, "wake_up_on", lambda *_: self.wake)
        monkeypatch.setattr(own_process, "become_subreaper", lambda: None)
        monkeypatch.setattr(processes, "reap", lambda: [])
        ours, theirs = socket.socketpair()
        self.guard = Peer(Channel(theirs))
        self._out = os.memfd_create("stdout")
        self._err = os.memfd_create("stderr")
        self.job = Job(
            control=f"@poprun-test-{os.urandom(8).hex()}/key",
            descriptor_limits=resource.getrlimit(resource.RLIMIT_NOFILE),
            mark="POPDIST_JOB_ID=abc",
            mpirun=["/bin/mpirun", "-n", str(size), "shim"],
            mpirun_environment={b"HOME": b"/root"},
            specs=[
                protocol.pack(protocol.SPEC, b"spec %d" % rank) for rank in range(size)
            ],
            host_names=["here"] * size,
            **job,  # type: ignore[arg-type]
        )
        self.told: list[Event] = []
        started = StartedGuard(
            pid=GUARD_PID,
            channel=Channel(ours),
            output=os.memfd_create("words"),
            older=frozenset(),
        )
        router = OutputRouter(Routes(), self._out, self._err)
        self.mpirun = MpirunProcess(self.job, started, "here")
        self.host = LimitedHost(self.job, self.mpirun, ranks or range(size))
        hosts = [self.host, *others]
        self.supervisor = Supervisor(
            self.job, self.mpirun, hosts, router, self.told.append, make_clients(size)
        )
        self.host.listen()
        self.mpirun.start()
        self.supervisor.start()
        self.ended: AttemptEnd | None = None
        self._shims: list[Shim] = []

    def turn(self, times: int = 1) -> None:
        """Let poprun deal with what has come by now."""
        for _ in range(times):
            self.supervisor._turn(time.monotonic())

    def shim(self, rank: int, key: bytes | None = None) -> Shim:
        """Connect a shim, and let poprun read its hello."""
        shim = Shim(self.job, rank, key=key)
        self._shims.append(shim)
        self.turn(2)  # it is accepted, and read in the next turn
        return shim

    def run(self, size: int) -> list[Shim]:
        """Start mpirun and all instances."""
        self.guard.say(protocol.MPIRUN_STARTED, MPIRUN_PID, 1)
        self.turn()
        shims = [self.shim(rank) for rank in range(size)]
        for shim in shims:
            shim.start()
        self.turn()
        for peer in (self.guard, *shims):
            peer.heard()
        self.told.clear()
        return shims

    def signal(self, number: int) -> None:
        os.write(self._signals, bytes([number]))
        self.turn()

    def finish(self) -> AttemptEnd:
        """See the job through: all that it waits for has been said."""
        self.guard.say(protocol.FINISHED, 0)
        self.ended = self.supervisor.run()
        return self.ended

    def output(self) -> tuple[bytes, bytes]:
        return os.pread(self._out, 1 << 16, 0), os.pread(self._err, 1 << 16, 0)

    def close(self) -> None:
        for shim in self._shims:
            for writer in shim.writers.values():
                os.close(writer)
            shim.channel.close()
        if self.ended is None:
            self.supervisor._state = replace(self.supervisor._state, phase=Phase.OVER)
            self.finish()
        self.guard.channel.close()
        self.mpirun._guard.channel.close()
        for descriptor in (self.wake, self._signals, self._out, self._err):
            os.close(descriptor)
