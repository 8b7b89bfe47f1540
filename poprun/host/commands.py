"""Commands that mpirun runs on this host: its daemons, which start the shims.

mpirun starts them on other hosts by a remote shell. That is poprun's own (helpers/
remote_shell.py), and it sends them here: so the agent is the ancestor of all processes
of the job on its host, and finds leftover ones.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from poprun.helpers import processes
from poprun.output.waiter import READ, Interest
from poprun.wire import protocol
from poprun.wire.channel import PIECE


class Commands:
    """The commands of one job on this host.

    Args:
        send: Sends a message to poprun: its kind and fields.
        environment: The environment of each command.
        blocked: Signals that they do not get.
    """

    def __init__(
        self,
        send: Callable[..., None],
        environment: Mapping[bytes, bytes],
        blocked: Sequence[int] = (),
    ) -> None:
        self._send = send
        self._environment = environment
        self._blocked = blocked
        # The pid of each running command, by its number.
        self._pids: dict[int, int] = {}
        # By descriptor to read: the number of a command, and 1 for stdout or 2.
        self._outputs: dict[int, tuple[int, int]] = {}

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
            self._send(protocol.COMMAND_OUTPUT, number, 2, reason)
            self._send(protocol.COMMAND_ENDED, number, 127)
            os.close(out_read)
            os.close(err_read)
            return 0
        finally:
            os.close(out_write)
            os.close(err_write)
        self._pids[number] = pid
        self._outputs |= {out_read: (number, 1), err_read: (number, 2)}
        return pid

    def end(self, number: int) -> int:
        """End a command because mpirun has ended its remote shell.

        Returns the pid that it had, 0 if it has ended by itself.
        """
        process = processes.process(self._pids.get(number, 0))
        if process is None or process.parent != os.getpid():
            return 0
        is_blocked = signal.SIGTERM in self._blocked
        processes.send(signal.SIGKILL if is_blocked else signal.SIGTERM, process)
        return process.pid

    def interests(self) -> Iterator[Interest]:
        for descriptor in self._outputs:
            yield Interest(descriptor, READ, partial(self._read, descriptor))

    def note_end(self, pid: int, status: int) -> None:
        """Take in that a child of the agent has ended."""
        for number in [number for number, p in self._pids.items() if p == pid]:
            for descriptor, (owner, _) in list(self._outputs.items()):
                if owner != number:
                    continue
                os.set_blocking(descriptor, False)
                while self._read(descriptor):
                    continue
                # A process that the command has left behind may keep it open.
                if self._outputs.pop(descriptor, None):
                    os.close(descriptor)
            del self._pids[number]
            self._send(protocol.COMMAND_ENDED, number, processes.exit_code(status))

    def _read(self, descriptor: int) -> bool:
        """Read and send a piece; return whether there may be more."""
        if descriptor not in self._outputs:
            return False  # closed since poll returned
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return False
        number, stream = self._outputs[descriptor]
        if data:
            self._send(protocol.COMMAND_OUTPUT, number, stream, data)
        else:
            del self._outputs[descriptor]
            os.close(descriptor)
        return bool(data)
