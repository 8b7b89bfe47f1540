"""The part of a job that runs on an agent's host: LocalHost, files and processes."""

import base64
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

from poprun.helpers import processes
from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.helpers.guard import FINISH_GRACE_S, LIMIT_S, SHIM_GRACE_S
from poprun.helpers.job_files import LOCK, make_lock, undo_abandoned, usual_places
from poprun.host.attachments import Attachments
from poprun.host.commands import Commands
from poprun.host.devices import ForwardedDevices
from poprun.host.forwarded_streams import ForwardedInput, ForwardedOutput
from poprun.host.local_host import LocalHost
from poprun.job.resource_limits import raise_descriptor_limit
from poprun.job.values import HostJob, Job, directory_resource
from poprun.mpirun.environment import without_batch_system
from poprun.output.waiter import Interest
from poprun.reach.out_of_memory import read_host
from poprun.trace.record_pieces import record_pieces
from poprun.vipu.launch.values import InstanceDevices
from poprun.wire import event_codec, messages, protocol
from poprun.wire.call_files import CALL, result_pieces
from poprun.wire.channel import Channel
from poprun.wire.events import DaemonKilled, Event, NotUndone, Remains, SlurmEndsJob

# How long it is waited for processes before poprun is told that this host is alive.
WAIT_S = 3.0


class ServedJob:
    """What an agent does for a job.

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
        host_job = self._host_job = HostJob(**value)
        by_rank = dict(zip(host_job.ranks, specs, strict=True))
        self._job = Job(
            control=host_job.control,
            mark=host_job.mark,
            mpirun=(),
            mpirun_environment={},
            specs=[by_rank.get(r, b"") for r in range(host_job.num_instances)],
            descriptor_limits=(0, 0),
            merge_stderr=host_job.merge_stderr,
            grace=host_job.grace,
            has_mpi=host_job.has_mpi,
            directory=host_job.directory,
            ended_file=host_job.ended_file,
        )
        own = self._devices = None
        if host_job.devices is not None:
            own = InstanceDevices(*host_job.devices)
            self._devices = ForwardedDevices(channel, own)
        self._host = LocalHost(
            self._job,
            host_job.name,
            host_job.ranks,
            self._add_shim,
            attachments=Attachments(self._devices, own),
        )
        self._output = ForwardedOutput(channel)
        self._input = ForwardedInput(channel, host_job.stdin_ranks)
        environment = {**without_batch_system(environ), **host_job.environment}
        self._commands = Commands(
            channel,
            {os.fsencode(n): os.fsencode(v) for n, v in environment.items()},
            blocked=(signal.SIGTERM,) if is_in_slurm else (),
        )
        # The pids of what mpirun runs here, and of what has started a shim.
        self._daemons: set[int] = set()
        self._end_actions = EndActions()
        self._lock = os.path.join(os.fsencode(host_job.directory), LOCK)
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
        try:
            self._start(guard)
        except BaseException:
            self._undo()
            raise

    def _start(self, guard: Channel) -> None:
        # Besides what poprun itself needs for an instance, the input to write.
        raise_descriptor_limit(len(self._host_job.ranks), 1)
        paths = filter(None, (self._host_job.directory, self._host_job.cache))
        resources = [directory_resource(path) for path in paths]
        # All are registered first, as this process may be killed at any time.
        for resource in resources:
            guard.send(self._end_actions.register(resource.end_action))
        for resource in resources:
            resource.make()
        make_lock(os.fsencode(self._job.directory), self._end_actions)
        if self._host_job.call:
            path = os.path.join(self._job.directory, CALL)
            with open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
                file.write(base64.b64decode(self._host_job.call))
        leftovers = map(os.fsencode, self._host_job.leftovers)
        guard.send(
            protocol.pack(protocol.MARK, os.fsencode(self._job.mark))
            + protocol.pack(protocol.HOLD, self._lock)
            + protocol.pack(protocol.WATCH, *leftovers)
        )
        self._host.listen()
        self._host.start(self._emit, self._output, self._input)

    def _add_shim(self, shim: Channel, pid: int, _start: int) -> None:
        """Let a shim hold the lock file of the job here."""
        process = processes.process(pid)
        if process is not None:
            self._daemons.add(process.parent)
        shim.send(protocol.pack(protocol.HOLD, self._lock), (self._pipe,))

    def _emit(self, event: Event) -> None:
        self._channel.send(messages.pack(messages.EVENT, event_codec.pack(event)))

    # --- What the agent's loop needs.

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
            self._channel.send(protocol.pack(messages.CLEAN, int(self._is_clean)))

    def note_slurms_end(self) -> None:
        """Let poprun know that Slurm has sent SIGTERM to all processes here."""
        self._emit(SlurmEndsJob())

    def note_child(self, pid: int, status: int) -> None:
        """Take in that a child of the agent has ended.

        A daemon is the command that mpirun runs here, or a child of that command's
        shell, which then exits with the shell's code for a signal. Or it has left the
        command, and has become the agent's child. poprun's own launcher has none: its
        commands are shims.
        """
        was_killed = processes.exit_code(status) == 128 + signal.SIGKILL
        if self._job.has_mpi and pid in self._daemons and was_killed:
            self._emit(DaemonKilled(host=self._host_job.name))
        self._commands.note_end(pid, status)

    def note_leftover(self, path: bytes) -> None:
        """Take in a file that a process of the job has made, to be removed last."""
        self._end_actions.register(RemovePath(path))

    # --- What poprun says.

    def receive(self, kind: int, fields: list[bytes]) -> None:
        if kind == messages.STDIN:
            self._input.receive(int(fields[0]), fields[1])
            return
        if kind == messages.RUN:
            pid = self._commands.run(int(fields[0]), fields[1])
            self._daemons.add(pid)
            return
        if kind == messages.DEVICE:
            if self._devices is not None:
                rank, pid = int(fields[0]), int(fields[1])
                self._devices.receive(rank, pid, fields[2].decode(errors="replace"))
            return
        numbers = [int(field) for field in fields]
        if kind == messages.STOP_STARTING:
            self._host.stop_starting()
        elif kind == messages.SIGNAL:
            self._host.signal_instances(*numbers)
        elif kind == messages.INTERRUPT:
            self._host.interrupt_instance(*numbers)
        elif kind == messages.KILL:
            self._host.kill_instances()
        elif kind == messages.RELEASE:
            self._host.release_shims()
        elif kind == messages.SHOW_STACKS:
            self._host.show_stacks(*numbers)
        elif kind == messages.NOTE_END:
            self._host.note_end(*numbers)
        elif kind == messages.MEASURE:
            self._host.measure()
        elif kind == messages.CREDIT:
            self._output.grant(*numbers)
        elif kind == messages.RESIZE:
            self._output.resize((numbers[0], numbers[1]))
        elif kind == messages.END_RUN:
            pid = self._commands.end(*numbers)
            self._daemons.discard(pid)
        elif kind == messages.READ_CLOCK:
            answer = protocol.pack(messages.CLOCK, *numbers, time.monotonic_ns())
            self._channel.send(answer)
        elif kind == messages.FINISH:
            self._finish()

    # --- The end.

    def _finish(self) -> None:
        """End what is left of the job on this host, and undo what it has made."""
        self._host.finish()
        remaining = self._end_processes()
        self._output.send_rest()
        for p in remaining:
            user, command = processes.describe(p)
            text = command.decode(errors="backslashreplace")
            self._emit(
                Remains(pid=p.pid, user=user, command=text, host=self._host_job.name)
            )
        if self._host_job.is_traced:
            self._send_records()
        if self._host_job.call:
            for result in result_pieces(self._job.directory, self._host_job.ranks):
                self._channel.send(protocol.pack(messages.RESULT, *result))
        for failure in self._undo():
            self._emit(NotUndone(sentence=failure, host=self._host_job.name))
        self._has_finished = True
        counters = (b"" if n is None else n for n in astuple(read_host()))
        self._channel.send(protocol.pack(messages.FINISHED, *counters))

    def _send_records(self) -> None:
        for name, piece in record_pieces(self._host_job.directory):
            fields = os.fsencode(name), piece
            self._channel.send(protocol.pack(messages.CALL_RECORDS, *fields))

    def _end_processes(self) -> list[processes.Process]:
        """End what is left of the instances; return what the kernel does not end."""
        limit = time.monotonic() + LIMIT_S
        while True:
            _, remaining = processes.end(
                _tree, FINISH_GRACE_S, WAIT_S, all_children=True
            )
            if remaining or not _tree() or time.monotonic() >= limit:
                return remaining
            self._channel.send(protocol.pack(messages.ALIVE))

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
