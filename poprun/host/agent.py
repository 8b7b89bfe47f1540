"""The agent: runs on another host of a job, and is to its shims what poprun is here.

poprun starts it by a command such as ssh. The stdin and stdout of the command are the
connection. It answers poprun's questions about its host, then serves the instances of
that host. All of their processes descend from it: when poprun or its host is gone, it
ends them, undoes what the job has made here, and ends itself.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from poprun import __version__
from poprun.errors import LaunchError, MpiNotFoundError, PoprunError
from poprun.helpers import own_process, processes
from poprun.helpers.helper_commands import PYTHON
from poprun.host.served_job import ServedJob
from poprun.mpirun.find import find_mpirun
from poprun.output import waiter
from poprun.output.waiter import READ, WRITE, Interest
from poprun.plan.directories import check_directory
from poprun.reach.connections.caller import SSH_CONNECTION, Caller, find_caller
from poprun.reach.connections.silence import Silence
from poprun.reach.own_host.facts import own_facts
from poprun.reach.own_host.out_of_memory import read_host
from poprun.reach.own_host.program import find_program
from poprun.reach.own_host.temporary_directories import (
    private_directory_places,
    temporary_failure,
)
from poprun.wire import codec, protocol
from poprun.wire.agent_hello import PREAMBLE, AgentHello
from poprun.wire.channel import Channel, PipeChannel
from poprun.wire.machine import machine_id

# A function of the question's JSON value and the facts about the caller.
Question = Callable[[Any, Caller], Any]


def main() -> None:
    own_process.open_umask()
    # It has to notice that poprun is gone, even if something has stopped it.
    own_process.continue_regularly()
    own_process.become_subreaper()
    wake = own_process.wake_up_on(*own_process.HELPER_SIGNALS)
    # Output of libraries must not go into the connection.
    channel = PipeChannel(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    environ = own_process.without_own_changes(os.environ)
    HostAgent(channel, wake, find_caller(sys.argv[1], environ)).run()
    os._exit(0)


class HostAgent:
    """Serves poprun until that closes the connection, or is lost."""

    def __init__(self, channel: Channel, wake: int, caller: Caller) -> None:
        self._channel = channel
        self._wake = wake
        self._caller = caller
        self._guard: Channel | None = None  # from the start of the job on
        self._job: ServedJob | None = None
        self._is_connected = True
        self._silence = Silence(caller.is_gone, time.monotonic())

    def run(self) -> None:
        hello = codec.pack_json(protocol.AGENT_HELLO, asdict(_hello(self._caller)))
        self._channel.send(PREAMBLE + hello)
        try:
            while self._is_connected:
                self._turn()
        finally:
            # Nothing else would end the job here after an exception.
            if self._job is not None:
                self._job.abandon()
            if self._guard is not None:
                # poprun gets what this process writes to stderr when ssh ends.
                self._guard.tell(protocol.LAST_MESSAGE, b"")

    def _turn(self) -> None:
        now = time.monotonic()
        job = self._job
        due = self._silence.deadline()
        due = due if job is None else min(due, job.deadline(now))
        waiter.serve(self._interests(now), due)
        now = time.monotonic()
        if job is not None:
            job.tick(now)
        if self._silence.must_send(now):
            self._channel.tell(protocol.ALIVE)
            self._silence.note_sent(now)
            _continue_ancestors(1 if self._guard is None else 2)
        if self._silence.is_lost(now):
            self._is_connected = False

    def _interests(self, now: float) -> Iterator[Interest]:
        yield Interest(self._wake, READ, self._on_signals)
        yield Interest(self._channel.fileno(), READ, self._on_poprun)
        if self._channel.has_unsent:
            flush = self._channel.flush
            yield Interest(self._channel.write_fileno(), WRITE, flush)
        if self._guard is not None:
            yield Interest(self._guard.fileno(), READ, self._on_guard)
        if self._job is not None:
            yield from self._job.interests(now)

    def _on_signals(self) -> None:
        numbers = os.read(self._wake, 4096)
        if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
            if self._caller.is_slurm:
                # Slurm sends it to all processes of a job that it ends. poprun decides
                # what follows; it may soon be gone if it belongs to that job.
                if self._job is not None:
                    self._job.note_slurms_end()
                self._silence.expect_loss(time.monotonic())
            else:
                self._is_connected = False
        ended = processes.reap()
        if self._job is not None:
            for pid, status in ended:
                self._job.note_child(pid, status)

    def _on_guard(self) -> None:
        received = self._guard.receive() if self._guard else None
        if received is None:
            # Nothing would end the job here if this process were killed, too.
            self._channel.tell(protocol.SUPERVISOR_LOST, protocol.GUARD)
            self._is_connected = False
        for kind, fields in received or ():
            if kind == protocol.FOUND and self._job is not None:
                self._job.note_leftover(fields[0])

    def _on_poprun(self) -> None:
        received = self._channel.receive()
        if received is None:
            self._is_connected = False
            return
        self._silence.note_heard(time.monotonic())
        for kind, fields in received:
            try:
                self._receive(kind, codec.read(kind, fields))
            except (ValueError, IndexError, KeyError, TypeError):
                # It is not poprun that sends this.
                self._is_connected = False
                return

    def _receive(self, kind: int, values: list[Any]) -> None:
        if kind in _QUESTIONS:
            question = partial(_QUESTIONS[kind], values[0], self._caller)
            self._answer(lambda: codec.pack_json(protocol.REPLY, question()))
        elif kind == protocol.START_JOB and self._job is None:
            start = partial(self._start_job, *values)
            self._answer(start, "the job cannot be started: ")
        elif self._job is not None:
            self._job.receive(kind, values)

    def _answer(self, question: Callable[[], bytes], consequence: str = "") -> None:
        """Send the message that a function returns, or its error.

        Args:
            consequence: The beginning of the sentence about an error of the kernel.
        """
        try:
            message = question()
        except PoprunError as error:
            message = _refusal(error)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            reason = place + (error.strerror or str(error))
            message = _refusal(LaunchError(f"{consequence}{reason}."))
        self._channel.send(message)

    def _start_job(self, value: Mapping[str, Any], *specs: bytes) -> bytes:
        in_slurm = self._caller.is_slurm
        job = ServedJob(
            self._channel, value, specs, self._caller.environ, is_in_slurm=in_slurm
        )
        if self._guard is None:
            self._guard = _go_on_below_guard(self._channel.write_fileno())
        job.start(self._guard)
        self._job = job
        return protocol.pack(protocol.JOB_STARTED)


def _refusal(error: PoprunError) -> bytes:
    notes = getattr(error, "__notes__", [])
    fields = [type(error).__name__, str(error), *notes]
    return protocol.pack(protocol.REFUSAL, *map(os.fsencode, fields))


def _go_on_below_guard(connection: int) -> Channel:
    """Let this process become a guard, and a child of it return the connection to it.

    The guard is the same program as beside poprun (helpers/guard.py), without mpirun:
    it ends the job here if the agent is killed. It is a child of sshd or slurmstepd,
    which end after it. This process must be a subreaper: then the guard is one before
    it has come up.

    Args:
        connection: The guard writes to it when the agent is gone.

    Raises:
        OSError: There can be no more processes or descriptors.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    inode = os.fstat(ours.fileno()).st_ino
    if agent := os.fork():
        try:
            # Until the guard handles them: Slurm may send one to all at any time.
            signal.pthread_sigmask(signal.SIG_BLOCK, own_process.HELPER_SIGNALS)
            number = os.dup(theirs.fileno())
            os.set_inheritable(number, True)
            numbers = map(str, (number, agent, inode))
            os.execv(PYTHON[0], (*PYTHON, "guard", *numbers))
        finally:
            # The child ends, too, when it finds that it has no guard.
            os._exit(127)
    theirs.close()
    # A child does not inherit these settings.
    own_process.become_subreaper()
    own_process.continue_regularly()
    guard = Channel(ours)
    last_message = protocol.pack(protocol.SUPERVISOR_LOST, protocol.AGENT)
    guard.tell(protocol.LAST_MESSAGE, last_message, descriptors=(connection,))
    return guard


def _continue_ancestors(count: int) -> None:
    """Continue the guard, and the sshd or what else has started it, if it is stopped.

    While sshd is stopped, the kernel has nothing to send, and so it cannot learn that
    poprun's host is gone.
    """
    pid = os.getppid()
    for _ in range(count):
        ancestor = processes.process(pid)
        if ancestor is None:
            return
        if ancestor.stopped:
            processes.send(signal.SIGCONT, ancestor)
        pid = ancestor.parent


def _describe(cwd: str, caller: Caller) -> Any:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise LaunchError(
            f"instances cannot start in {cwd!r}, poprun's current directory: "
            f"{error.strerror}. Create it there with mkdir -p, let --sync . copy it, "
            "or start poprun in a directory that the hosts share."
        ) from None
    places = list(private_directory_places(caller.environ))
    return asdict(own_facts(caller.address, places))


def _check_mpi(question: list[str], caller: Caller) -> Any:
    path, title, packages = question
    own = find_mpirun(path, caller.environ, packages).title
    if own != title:
        raise MpiNotFoundError(
            f"{path} belongs to {own}, but on poprun's host it belongs to {title}. "
            "Install the same MPI at the same path there."
        )


def _find_program(question: list[Any], _: Caller) -> Any:
    argv, search_path, cwd = question
    check_directory(cwd)
    return find_program(argv, search_path, cwd)


def _read_memory(question: None, _: Caller) -> Any:
    return asdict(read_host())


_QUESTIONS: Mapping[int, Question] = {
    protocol.DESCRIBE_HOST: _describe,
    protocol.CHECK_MPI: _check_mpi,
    protocol.FIND_PROGRAM: _find_program,
    protocol.READ_MEMORY: _read_memory,
}


def _hello(caller: Caller) -> AgentHello:
    return AgentHello(
        version=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        hostname=os.uname().nodename,
        user=os.geteuid(),
        machine=machine_id(),
        clock=time.time(),
        environ=dict(caller.environ),
        ssh_connection=caller.environ.get(SSH_CONNECTION, ""),
        address=caller.address,
        temporary_failure=temporary_failure(caller.environ),
    )
