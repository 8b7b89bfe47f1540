"""poprun's end of the connection to the agent of one host.

A command such as ssh starts the agent. The stdin and stdout of the command are the
connection, so neither a port nor a key is needed.
"""

import fcntl
import os
import select
import signal
import socket
import subprocess
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from poprun import errors
from poprun.errors import LaunchError, PoprunError
from poprun.helpers import own_process, processes
from poprun.helpers.load import timeout_factor
from poprun.reach.connections.connector import (
    MOST_LINES,
    Connector,
    errors_in,
    quotation,
)
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.wire import codec, protocol
from poprun.wire.agent_hello import PREAMBLE_START, VERSION, AgentHello
from poprun.wire.channel import Channel
from poprun.words import printable

# The longest message that is received: an environment as JSON is the longest that an
# agent has to send, and data of another host must not fill the memory.
MOST_RECEIVED = 1 << 24
# How much a login shell may print before the agent's first byte.
MOST_BANNER = 1 << 16
# How long an agent may take to answer a question before the job, and to start the job.
REPLY_S = 5.0
START_S = 30.0
# How much is kept of what the command and the agent's host write to stderr.
MOST_ERRORS = 1 << 14
# Why a host is lost after an invalid message.
INVALID_MESSAGE = "its agent has sent an invalid message"


class OtherVersionError(ConnectionError):
    """The agent has another version of poprun, with different messages."""


class AgentConnection:
    """A process of ssh, srun or another command, and the messages that it transports.

    Args:
        name: The host, as errors name it.
        argv: The command that runs the agent on the host.

    Raises:
        LaunchError: It cannot be started.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        environ: Mapping[str, str],
        connector: Connector,
    ) -> None:
        self.name = name
        self.connector = connector
        self._is_open = True
        # When the command must have ended by itself, once this end is closed.
        self.exits_by = inf
        # Whether there is a hello.
        self.has_answered = False
        # The output of a login shell before the agent's first byte, which may not have
        # come yet.
        self.banner = b""
        self._is_greeted = False
        # The memory counters of the host after the job.
        self.memory: MemoryCounters | None = None
        # Messages that have come and have not been taken.
        self._received: deque[tuple[int, list[bytes]]] = deque()
        self._errors = _bounded_file()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _start(argv, environ, theirs.fileno(), self._errors)
            except (OSError, subprocess.SubprocessError) as error:
                ours.close()
                os.close(self._errors)
                reason = errors.explain_errno(getattr(error, "errno", 0) or 0)
                raise LaunchError(f"{argv[0]} cannot be run: {reason}") from None
        self.pid = self._process.pid
        self.channel = Channel(ours, MOST_RECEIVED)

    @property
    def start(self) -> int:
        """When the process was started: with its pid, it is never another's."""
        return processes.start_time(self.pid)

    def loss_check(self) -> Callable[[], bool] | None:
        """Return a function that detects the loss of the host, once it is silent."""
        return self.connector.loss_check(self.pid, self.hello.ssh_connection)

    @property
    def is_direct(self) -> bool:
        """Whether the agent's end is closed as soon as this end is."""
        return self.connector.is_direct(self.hello.ssh_connection)

    def fileno(self) -> int:
        return self.channel.fileno()

    def receive_hello(self) -> bool:
        """Read what the agent has sent; return whether its hello is complete.

        It never waits: other hosts may answer meanwhile.

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
            if kind != protocol.AGENT_HELLO:
                raise OtherVersionError
            value = codec.unpack_json(fields[0])
            self.hello: AgentHello = codec.unpack_value(AgentHello, value)
        except (ValueError, IndexError, AttributeError):
            raise OtherVersionError from None
        self.connector.on_hello(self.pid)
        self.has_answered = True
        return True

    def _without_banner(self, data: bytes) -> bytes:
        """Return the bytes of the agent's messages, without a login shell's output.

        Raises:
            OtherVersionError, ConnectionError: See receive_hello.
        """
        if self._is_greeted:
            return data
        self.banner += data
        before, _, after = self.banner.partition(PREAMBLE_START)
        version, line_end, after = after.partition(b"\n")
        if not line_end:
            if len(self.banner) > MOST_BANNER:
                raise ConnectionError
            return b""
        if version != VERSION:
            raise OtherVersionError
        self.banner, self._is_greeted = before, True
        return after

    def ask(self, kind: int, value: Any = None, answer_type: Any = None) -> Any:
        """Send a question to the agent, and return the answer.

        Args:
            answer_type: See codec.unpack_value.

        Raises:
            PoprunError: The host refuses, or does not answer as it must.
        """
        self.channel.send(codec.pack_json(kind, value))
        return self.answer(answer_type, REPLY_S * timeout_factor())

    def answer(self, answer_type: Any = None, within: float = START_S) -> Any:
        """Return the answer to a question.

        Raises:
            PoprunError: The host refuses, or does not answer as it must in so many
                seconds.
        """
        limit = time.monotonic() + within
        try:
            kind, fields = self._next(limit)
            while kind == protocol.ALIVE:
                kind, fields = self._next(limit)
            return self.read_answer(kind, fields, answer_type)
        except ConnectionError:
            lines = [line.strip() for line in self.stderr_text.splitlines()]
            words = quotation(self.connector.name, lines[-MOST_LINES:])
            raise self._loss(f"the connection to it has ended.{words}") from None
        except TimeoutError:
            why = f"its agent does not answer within {within:.0f} s."
            raise self._loss(why) from None

    def read_answer(
        self, kind: int, fields: list[bytes], answer_type: Any = None
    ) -> Any:
        """Return the answer in a message.

        Raises:
            PoprunError: See answer.
        """
        try:
            match kind, codec.read(kind, fields):
                case protocol.REPLY, [value]:
                    return codec.unpack_value(answer_type, value)
                case protocol.JOB_STARTED, []:
                    return codec.unpack_value(answer_type, None)
                case protocol.SUPERVISOR_LOST, [process]:
                    raise self._loss(f"{codec.why_supervisor_lost(process)}.")
                case protocol.REFUSAL, [name, sentence, *notes]:
                    raise self._refusal(*map(_text, (name, sentence, *notes)))
        except ValueError:
            pass
        raise self._loss(f"{INVALID_MESSAGE}.")

    def _loss(self, why: str) -> LaunchError:
        return LaunchError(
            f"The host {self.name} was lost before the job started: {why}"
        )

    def _refusal(self, class_name: str, sentence: str, *notes: str) -> PoprunError:
        """Return the error that an agent reports."""
        error_class = getattr(errors, class_name, None)
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
    def stderr_text(self) -> str:
        """The command's stderr."""
        written = os.pread(self._errors, MOST_ERRORS, 0).rstrip(b"\0")
        # ssh ends lines as for a terminal.
        return errors_in(_text(written.replace(b"\r\n", b"\n")))

    def wait_for_exit(self, seconds: float) -> int | None:
        """Return the command's exit code once it has ended; None if it has not."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def note_exit(self, status: int) -> None:
        """Take in the wait status of the command, which the caller has reaped."""
        self._process.returncode = os.waitstatus_to_exitcode(status)

    def hang_up(self) -> None:
        """Close the connection, whereupon the agent ends, and the command after it."""
        if self._is_open:
            self._is_open = False
            self.channel.close()
            self.exits_by = time.monotonic() + self.connector.exit_s

    def has_exited(self, now: float) -> bool:
        """Return whether the command has ended, or must: then `end` does not wait."""
        return now >= self.exits_by or self._process.poll() is not None

    def end(self) -> None:
        """End the command and its descendants, such as the ssh to a jump host."""
        self.hang_up()
        now = time.monotonic()
        if not self.has_exited(now):
            self.wait_for_exit(self.exits_by - now)
        process = processes.process(self.pid)
        # The supervisor reaps the children of poprun. The number may be another's then.
        if process is not None and process.parent == os.getpid():
            # The leader of a session is the leader of a group, too.
            processes.kill_group(self.pid)
        self._process.wait()
        # A signal may come between the end of one connection and of the next.
        errors, self._errors = self._errors, -1
        if errors >= 0:
            os.close(errors)


def _text(data: bytes) -> str:
    """Return a text of another host, which must not control a terminal."""
    return printable(data.decode(errors="backslashreplace"))


def _start(
    argv: Sequence[str], environ: Mapping[str, str], stdio: int, stderr: int
) -> "subprocess.Popen[bytes]":
    """Start a program that the kernel kills when this process ends.

    To a host that is cut off, ssh goes on without poprun and without its guard for as
    long as TCP does.

    Raises:
        OSError, SubprocessError: It cannot be started.
    """
    parent = os.getpid()

    def prepare() -> None:
        if not own_process.die_with_parent(signal.SIGKILL, parent):
            os._exit(127)
        own_process.default_signals()
        # Slurm sends it to all processes of a job that it ends. ssh, which would end
        # by it, is still needed then.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    # From Python 3.12 on it warns of threads, such as the one that serves popctl. The
    # child takes no lock of another thread before exec.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return subprocess.Popen(
            argv,
            # exec accepts no variable without a name.
            env={name: value for name, value in environ.items() if name},
            stdin=stdio,
            stdout=stdio,
            stderr=stderr,
            # A Ctrl-C is poprun's to act on, and ssh finds no terminal to ask for a
            # password on.
            start_new_session=True,
            preexec_fn=prepare,
        )


def _bounded_file() -> int:
    """Return a file in memory that cannot grow: a write of more to it fails."""
    descriptor = os.memfd_create("ssh", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, MOST_ERRORS)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return descriptor
