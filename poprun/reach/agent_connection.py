"""poprun's end of the connection to the agent of one host.

The agent is started by ssh or srun, whose stdin and stdout are the connection: it is
authenticated by that, and needs no port and no key.
"""

import fcntl
import os
import select
import signal
import socket
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from poprun import errors
from poprun.errors import LaunchError, PoprunError
from poprun.helpers import own_process, processes
from poprun.helpers.load import timeout_factor
from poprun.reach.srun_port import SRUN, failures_in
from poprun.wire import messages
from poprun.wire.channel import Channel
from poprun.wire.messages import AgentHello

# How much a login shell may print before the agent's first byte.
MOST_BANNER = 1 << 16
# How long srun may take to end when its agent does.
SRUN_END_S = 5.0
# How long an agent may take to answer a question before the job, and to start the job.
REPLY_S = 5.0
START_S = 30.0
# How much is kept of what ssh and the agent's host write to ssh's stderr.
MOST_ERRORS = 1 << 14


class OtherVersionError(ConnectionError):
    """The agent is of another version of poprun, whose messages are different."""


class AgentConnection:
    """A process of ssh or srun, and what comes and goes by it.

    Args:
        name: The host, as errors name it.
        argv: The command that runs the agent on the host.
        tool: What it is: ssh or srun.

    Raises:
        LaunchError: It cannot be started.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        environ: Mapping[str, str],
        tool: str = "ssh",
    ) -> None:
        self.name = name
        self.tool = tool
        self._is_open = True
        self.hello: AgentHello | None = None
        # What came before the agent's first byte, and whether that has come.
        self.banner = b""
        self._is_greeted = False
        # The memory counters of the host after the job.
        self.memory: tuple[int | None, int | None, int | None] | None = None
        # Messages that have come and have not been taken.
        self._received: deque[tuple[int, list[bytes]]] = deque()
        self._errors = _bounded_file()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pairs = {os.fsencode(n): os.fsencode(v) for n, v in environ.items() if n}
        try:
            words = [os.fsencode(word) for word in argv]
            self.pid = _start(words, pairs, theirs.fileno(), self._errors)
        except OSError as error:
            ours.close()
            os.close(self._errors)
            raise LaunchError(
                f"{argv[0]} cannot be run: {errors.explain_errno(error.errno or 0)}"
            ) from None
        finally:
            theirs.close()
        self.channel = Channel(ours, messages.MOST_RECEIVED)

    @property
    def start(self) -> int:
        """When the process of ssh was started: with its pid, it is never another's."""
        return processes.start_time(self.pid)

    def fileno(self) -> int:
        return self.channel.fileno()

    def receive_hello(self) -> bool:
        """Read what has come before the job; return whether the agent has answered.

        It never waits: meanwhile other hosts may answer.

        Raises:
            OtherVersionError: It is the agent of another version of poprun.
            ConnectionError: ssh has ended, or something else than an agent answers.
        """
        data = self.channel.read()
        if data is None:
            return False
        if not data:
            raise ConnectionError
        try:
            self._received += self.channel.feed(self._without_banner(data))
            if not self._received:
                return False
            kind, fields = self._received.popleft()
            if kind != messages.HELLO:
                raise OtherVersionError
            self.hello = AgentHello(**messages.unpack(fields[0]))
        except (ValueError, IndexError, TypeError):
            raise OtherVersionError from None
        if self.tool == SRUN:
            self._end_helper_of_srun()
        return True

    def _without_banner(self, data: bytes) -> bytes:
        """Return what belongs to the agent's messages of bytes that have come.

        Raises:
            OtherVersionError, ConnectionError: As of receive_hello.
        """
        if self._is_greeted:
            return data
        self.banner += data
        before, _, after = self.banner.partition(messages.PREAMBLE_START)
        version, line_end, after = after.partition(b"\n")
        if not line_end:
            if len(self.banner) > MOST_BANNER:
                raise ConnectionError
            return b""
        if version != messages.VERSION:
            raise OtherVersionError
        self.banner, self._is_greeted = before, True
        return after

    def ask(self, kind: int, value: Any = None) -> Any:
        """Send a question to the agent, and return the answer.

        Raises:
            PoprunError: The host refuses, or does not answer.
        """
        self.channel.send(messages.pack(kind, value))
        return self.answer(REPLY_S * timeout_factor())

    def answer(self, within: float = START_S) -> Any:
        """Return the answer to a question.

        Raises:
            PoprunError: The host refuses, or does not answer in so many seconds.
        """
        limit = time.monotonic() + within
        try:
            kind, fields = self._next(limit)
            while kind == messages.ALIVE:
                kind, fields = self._next(limit)
            if kind == messages.SUPERVISOR_LOST:
                why = messages.why_supervisor_lost(fields)
                raise LaunchError(
                    f"The host {self.name} was lost before the job started: {why}."
                )
            if kind != messages.REFUSAL:
                return messages.unpack(fields[0]) if fields else None
            refusal = self._refusal([messages.printable(field) for field in fields])
        except (ConnectionError, ValueError):
            lines = [line.strip() for line in self.ssh_text.splitlines()]
            words = f" {self.tool} says: '{'; '.join(lines[-2:])}'." if lines else ""
            raise LaunchError(
                f"The host {self.name} was lost before the job started: the "
                f"connection to it has ended.{words}"
            ) from None
        except TimeoutError:
            raise LaunchError(
                f"The host {self.name} was lost before the job started: its agent "
                f"does not answer within {within:.0f} s."
            ) from None
        raise refusal

    def _refusal(self, fields: list[str]) -> PoprunError:
        """Return the error that an agent reports.

        Raises:
            ValueError: It reports none.
        """
        kind, sentence, *notes = fields
        error_class = getattr(errors, kind, None)
        if not (isinstance(error_class, type) and issubclass(error_class, PoprunError)):
            error_class = LaunchError
        error: PoprunError = error_class(f"On the host {self.name}: {sentence}")
        for note in notes:
            error.add_note(note)
        return error

    def receive(self) -> list[tuple[int, list[bytes]]] | None:
        """Return the messages that have come; None when the connection has ended."""
        received = self.channel.receive()
        if received is None and not self._received:
            return None
        received = [*self._received, *(received or ())]
        self._received.clear()
        return received

    def _next(self, limit: float) -> tuple[int, list[bytes]]:
        """Return the message that comes next.

        Raises:
            ConnectionError: The connection has ended.
            TimeoutError: None has come in time.
        """
        poll = select.poll()
        while not self._received:
            writes = select.POLLOUT if self.channel.has_unsent else 0
            poll.register(self.fileno(), select.POLLIN | writes)
            # Also after the limit: poprun may have been stopped, and it may be there.
            wait = max(0.0, limit - time.monotonic())
            if not poll.poll(processes.poll_timeout(wait)):
                raise TimeoutError
            self.channel.flush()
            received = self.channel.receive()
            if received is None:
                raise ConnectionError
            self._received += received
        return self._received.popleft()

    @property
    def ssh_text(self) -> str:
        """What ssh or srun has written to its stderr."""
        written = os.pread(self._errors, MOST_ERRORS, 0).rstrip(b"\0")
        # ssh ends lines as for a terminal.
        return failures_in(messages.printable(written.replace(b"\r\n", b"\n")))

    def exit_code(self) -> int | None:
        """Return ssh's exit code if it has ended, at once; None if it has not."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None
        return processes.exit_code(status) if pid else None

    def wait_for_exit(self, seconds: float) -> int | None:
        """Return ssh's exit code once it has ended; None if it has not by then."""
        limit = time.monotonic() + seconds
        while (code := self.exit_code()) is None and time.monotonic() < limit:
            time.sleep(processes.LOOK_AGAIN_S)
        return code

    def _end_helper_of_srun(self) -> None:
        """End the child of srun that kills the agent's step when srun is killed.

        The agent notices that itself, ends its part of the job and removes its files,
        for which a SIGKILL leaves it no time.
        """
        for child in processes.descendants([self.pid]):
            processes.send(9, child)

    def hang_up(self) -> None:
        """Close the connection, whereupon the agent ends, and srun after it."""
        if self._is_open:
            self._is_open = False
            self.channel.close()

    def end(self) -> None:
        """End ssh, what it has started to reach a jump host, and wait for it."""
        self.hang_up()
        if self.tool == SRUN and self._is_child():
            # Slurm would take a step whose srun was killed for one that has failed.
            self.wait_for_exit(SRUN_END_S)
        if self._is_child():
            # The leader of a session is the leader of a group, too.
            processes.kill_group(self.pid)
            processes.wait_for(self.pid)
        os.close(self._errors)

    def _is_child(self) -> bool:
        process = processes.process(self.pid)
        return process is not None and process.parent == os.getpid()


def _start(
    argv: list[bytes], environment: Mapping[bytes, bytes], stdio: int, stderr: int
) -> int:
    """Start a program that the kernel kills when this process ends; return its pid.

    To a host that is cut off, ssh goes on without poprun and without its guard for as
    long as TCP does.

    Raises:
        OSError: It cannot be started.
    """
    parent = os.getpid()
    failure, report = os.pipe()
    pid = _fork()
    if not pid:
        try:
            if own_process.die_with_parent(signal.SIGKILL, parent):
                # A Ctrl-C is poprun's to act on, and ssh finds no terminal to ask for a
                # password on.
                os.setsid()
                for target, descriptor in enumerate((stdio, stdio, stderr)):
                    os.dup2(descriptor, target)
                own_process.default_signals()
                # Slurm sends it to all processes of a job that it ends. ssh, which
                # would end by it, is still needed then.
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                os.execve(argv[0], argv, environment)
        except OSError as error:
            os.write(report, b"%d" % (error.errno or 0))
        finally:
            os._exit(127)
    os.close(report)
    with open(failure, "rb") as file:
        number = file.read()
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return pid


def _fork() -> int:
    # From Python 3.12 on it warns of threads, such as the one that serves popctl. The
    # child takes no lock of theirs before exec.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _bounded_file() -> int:
    """Return a file in memory that cannot grow: a write of more to it fails."""
    descriptor = os.memfd_create("ssh", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, MOST_ERRORS)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return descriptor
