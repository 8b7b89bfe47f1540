"""Commands that mpirun runs on this host: its daemons, which start the shims.

mpirun starts them on other hosts by a remote shell. That is poprun's own (helpers/
remote_shell.py), which sends them here: so the agent is the ancestor of all processes
of the job on its host, and finds what mpirun leaves.
"""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from poprun.helpers import processes
from poprun.output.waiter import READ, Interest
from poprun.wire import messages, protocol
from poprun.wire.channel import Channel

PIECE = 1 << 16


class RunningCommand:
    """A command, and what it writes."""

    def __init__(self, number: int, pid: int, outputs: dict[int, int]) -> None:
        self.number = number
        self.pid = pid
        # The descriptors to read, and which of stdout (1) and stderr (2) they are.
        self.outputs = outputs


class Commands:
    """The commands of one job on this host.

    Args:
        environment: What each of them gets.
        blocked: Signals that they do not get.
    """

    def __init__(
        self,
        channel: Channel,
        environment: Mapping[bytes, bytes],
        blocked: Sequence[int] = (),
    ) -> None:
        self._channel = channel
        self._environment = environment
        self._blocked = blocked
        self._running: dict[int, RunningCommand] = {}

    def run(self, number: int, text: bytes) -> int:
        """Start a command, as the shell of a login would; return its pid, 0 if none."""
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            pid = processes.spawn(
                processes.shell(text, keeps_mask=bool(self._blocked)),
                self._environment,
                err_write,
                stdout=out_write,
                blocked=self._blocked,
                setsid=True,
            )
        except OSError as error:
            reason = f"/bin/sh cannot be started: {error.strerror}\n".encode()
            self._channel.send(
                protocol.pack(messages.RUN_OUTPUT, number, 2, reason)
                + protocol.pack(messages.RUN_ENDED, number, 127)
            )
            os.close(out_read)
            os.close(err_read)
            return 0
        finally:
            os.close(out_write)
            os.close(err_write)
        outputs = {out_read: 1, err_read: 2}
        self._running[number] = RunningCommand(number, pid, outputs)
        return pid

    def end(self, number: int) -> int:
        """End a command of which mpirun has ended the remote shell.

        Returns the pid that it had, 0 if it has ended by itself.
        """
        command = self._running.get(number)
        process = None if command is None else processes.process(command.pid)
        if process is None or process.parent != os.getpid():
            return 0
        is_blocked = signal.SIGTERM in self._blocked
        processes.send(signal.SIGKILL if is_blocked else signal.SIGTERM, process)
        return process.pid

    def interests(self) -> Iterator[Interest]:
        for command in self._running.values():
            for descriptor in command.outputs:
                call = partial(self._read, command, descriptor)
                yield Interest(descriptor, READ, call)

    def note_end(self, pid: int, status: int) -> None:
        """Take in that a child of the agent has ended."""
        ended = [c for c in self._running.values() if c.pid == pid]
        for command in ended:
            for descriptor in list(command.outputs):
                os.set_blocking(descriptor, False)
                while self._read(command, descriptor):
                    continue
            for descriptor in command.outputs:
                os.close(descriptor)
            del self._running[command.number]
            code = processes.exit_code(status)
            message = protocol.pack(messages.RUN_ENDED, command.number, code)
            self._channel.send(message)

    def _read(self, command: RunningCommand, descriptor: int) -> bool:
        """Read and send a piece; return whether there may be more."""
        if descriptor not in command.outputs:
            return False  # closed since poll returned
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return False
        if not data:
            del command.outputs[descriptor]
            os.close(descriptor)
            return False
        stream = command.outputs[descriptor]
        message = protocol.pack(messages.RUN_OUTPUT, command.number, stream, data)
        self._channel.send(message)
        return True
