"""The part of a job that runs on an agent's host: LocalHost, files and processes."""

import base64
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple
from functools import partial
from typing import Any

from poprun.helpers import processes
from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.helpers.guard import FINISH_GRACE_S, LIMIT_S, SHIM_GRACE_S
from poprun.helpers.job_files import LOCK, make_lock, undo_abandoned, usual_places
from poprun.host.attachments import ForwardedDevices
from poprun.host.commands import Commands
from poprun.host.forwarded_streams import ForwardedInput, ForwardedOutput
from poprun.host.local_host import LocalHost
from poprun.job.values import HostJob, directory_resource
from poprun.mpirun.environment import without_batch_system
from poprun.output.waiter import Interest
from poprun.reach.own_host.out_of_memory import read_host
from poprun.reach.own_host.resource_limits import raise_descriptor_limit
from poprun.vipu.launch.values import InstanceDevices
from poprun.wire import codec, protocol
from poprun.wire.call_files import CALL, result_pieces
from poprun.wire.channel import Channel
from poprun.wire.events import DaemonKilled, Event, NotUndone, SlurmEndsJob

# How long it is waited for processes before poprun is told that this host is alive.
WAIT_S = 3.0


class ServedJob:
    """The job of an agent.

    Args:
        value: The HostJob as JSON.
        specs: The SPEC messages of the host's instances, in rank order.
        environ: The environment of the agent.
        is_in_slurm: Whether Slurm may send SIGTERM to all processes of the job here.
    """

    def __init__(
        self,
        channel: Channel,
        value: Mapping[str, Any],
        specs: Sequence[bytes],
        environ: Mapping[str, str],
        *,
        is_in_slurm: bool = False,
    ) -> None:
        self._channel = channel
        devices = value.get("devices")
        own = None if devices is None else InstanceDevices(**devices)
        job = self._job = HostJob(**{**value, "devices": own})
        self._devices = ForwardedDevices(self._channel.tell, own) if own else None
        self._host = LocalHost(job, specs, self._add_shim, devices=self._devices)
        self._output = ForwardedOutput(self._channel.tell)
        self._input = ForwardedInput(self._channel.tell, job.stdin_ranks)
        environment = {**without_batch_system(environ), **job.environment}
        self._commands = Commands(
            self._channel.tell,
            {os.fsencode(n): os.fsencode(v) for n, v in environment.items()},
            blocked=(signal.SIGTERM,) if is_in_slurm else (),
        )
        # The pids of mpirun's commands here, and of the parents of shims.
        self._daemons: set[int] = set()
        self._end_actions = EndActions()
        self._lock = os.path.join(os.fsencode(job.directory), LOCK)
        # Where mpirun runs, shims hold a pipe for it. Here they hold one for nothing.
        _, self._pipe = os.pipe()
        self._is_clean = False
        self._has_finished = False

    def start(self, guard: Channel) -> None:
        """Make the job's files here, and listen for shims.

        Args:
            guard: Undoes what the job has made here when this process is killed.

        Raises:
            LaunchError: A directory cannot be made, or the limit of open files is too
                low.
            OSError: There is no descriptor or no memory left.
        """
        with ExitStack() as failed:
            failed.callback(self._undo)
            # Besides what poprun itself needs for an instance, the input to write.
            raise_descriptor_limit(len(self._job.ranks), 1)
            paths = filter(None, (self._job.directory, self._job.cache))
            resources = [directory_resource(path) for path in paths]
            # All are registered first, as this process may be killed at any time.
            for resource in resources:
                guard.send(self._end_actions.register(resource.end_action))
            for resource in resources:
                resource.make()
            make_lock(os.fsencode(self._job.directory), self._end_actions)
            if self._job.call:
                path = os.path.join(self._job.directory, CALL)
                with open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
                    file.write(base64.b64decode(self._job.call))
            leftovers = map(os.fsencode, self._job.leftovers)
            guard.tell(protocol.MARK, os.fsencode(self._job.mark))
            guard.tell(protocol.HOLD, self._lock)
            guard.tell(protocol.WATCH, *leftovers)
            self._host.listen()
            self._host.start(self._emit, self._output, self._input)
            failed.pop_all()

    def _add_shim(self, shim: Channel, pid: int, _start: int) -> None:
        """Let a shim hold the lock file of the job here."""
        process = processes.process(pid)
        if process is not None:
            self._daemons.add(process.parent)
        shim.tell(protocol.HOLD, self._lock, descriptors=(self._pipe,))

    def _emit(self, event: Event) -> None:
        self._channel.send(codec.pack_event(event))

    # --- For the agent's loop.

    def interests(self, now: float) -> Iterator[Interest]:
        yield from self._host.interests(now)
        yield from self._commands.interests()
        yield from self._output.interests()
        yield from self._input.interests()

    def deadline(self, now: float) -> float:
        return self._host.deadline(now)

    def tick(self, now: float) -> None:
        self._host.tick(now)
        if self._host.is_clean != self._is_clean:
            self._is_clean = self._host.is_clean
            self._channel.tell(protocol.HOST_CLEAN, int(self._is_clean))

    def note_slurms_end(self) -> None:
        """Let poprun know that Slurm has sent SIGTERM to all processes here."""
        self._emit(SlurmEndsJob())

    def note_child(self, pid: int, status: int) -> None:
        """Take in that a child of the agent has ended.

        A daemon is mpirun's command itself, or a child of the command's shell: then the
        shell exits with its code for a signal. A daemon that has left the command has
        become the agent's child. poprun's own launcher has no daemons: its commands are
        shims.
        """
        was_killed = processes.exit_code(status) == 128 + signal.SIGKILL
        if self._job.has_mpi and pid in self._daemons and was_killed:
            self._emit(DaemonKilled(host=self._job.name))
        self._commands.note_end(pid, status)

    def note_leftover(self, path: bytes) -> None:
        """Take in a file that a process of the job has made, to be removed last."""
        self._end_actions.register(RemovePath(path))

    # --- Messages of poprun.

    def receive(self, kind: int, values: Sequence[Any]) -> None:
        match kind, *values:
            case protocol.GRANT_OUTPUT, rank, stream, num_bytes:
                self._output.grant(rank, stream, num_bytes)
            case protocol.RESIZE, rank, stream, rows, columns:
                self._output.resize(rank, stream, rows, columns)
            case protocol.INPUT, rank, data:
                self._input.receive(rank, data)
            case protocol.RUN_COMMAND, number, text:
                self._daemons.add(self._commands.run(number, text))
            case protocol.END_COMMAND, number:
                self._daemons.discard(self._commands.end(number))
            case protocol.DEVICE_ANSWER, rank, pid, refusal if self._devices:
                self._devices.receive(rank, pid, refusal)
            case protocol.READ_CLOCK, asked_ns:
                self._channel.tell(protocol.CLOCK, asked_ns, time.monotonic_ns())
            case (protocol.FINISH_HOST,):
                self._finish()
            case _:
                self._host.tell(kind, *values)

    # --- The end.

    def _finish(self) -> None:
        """End the leftover processes of the job on this host, and undo its files."""
        self._host.finish()
        remaining = self._end_processes()
        self._output.send_rest()
        for p in remaining:
            self._emit(codec.remains(self._job.name, p.pid, *processes.describe(p)))
        if self._job.is_traced:
            for name, piece in self._host.call_records:
                self._channel.tell(protocol.CALL_RECORDS, os.fsencode(name), piece)
        if self._job.call:
            for result in result_pieces(self._job.directory, self._job.ranks):
                self._channel.tell(protocol.RESULT, *result)
        for failure in self._undo():
            self._emit(NotUndone(sentence=failure, host=self._job.name))
        self._has_finished = True
        counters = (b"" if n is None else n for n in astuple(read_host()))
        self._channel.tell(protocol.HOST_FINISHED, *counters)

    def _end_processes(self) -> list[processes.Process]:
        """End leftover processes; return those that the kernel does not end."""
        limit = time.monotonic() + LIMIT_S
        while True:
            _, remaining = processes.end(
                _tree, FINISH_GRACE_S, WAIT_S, all_children=True
            )
            if remaining or not _tree() or time.monotonic() >= limit:
                return remaining
            self._channel.tell(protocol.ALIVE)

    def abandon(self) -> None:
        """End the job on this host without poprun, which is gone or lost."""
        if self._has_finished:
            return
        # The shims notice the end of their connection, and end their programs, which
        # is kinder to them.
        self._host.close()
        ends_by = time.monotonic() + min(self._job.grace, SHIM_GRACE_S) + 0.2
        while processes.has_children() and time.monotonic() < ends_by:
            processes.reap()
            time.sleep(processes.LOOK_AGAIN_S)
        processes.end(_tree, 0, LIMIT_S, all_children=True)
        mark = os.fsencode(self._job.mark)
        processes.end(lambda: processes.with_variable(mark), 0, LIMIT_S)
        self._undo()

    def _undo(self) -> list[str]:
        failures = self._end_actions.perform()
        # Its guard does the same, and knows TMPDIR.
        places = self._end_actions.directories() | usual_places({})
        return failures + undo_abandoned(places)


def _tree() -> list[processes.Process]:
    return processes.descendants([os.getpid()]) if processes.has_children() else []
