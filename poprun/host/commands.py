"""Commands on another host: the agent's end, and poprun's.

They start the shims: mpirun's daemons, and on a host that joins the shims themselves.
mpirun starts its daemons by a remote shell. That is poprun's own (helpers/
remote_shell.py), and poprun sends the command to the agent: so the agent is the
ancestor of all processes of the job on its host, and finds leftover ones.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

from poprun.helpers import processes
from poprun.output.stream_ends import DescriptorSource
from poprun.output.waiter import READ, Interest
from poprun.wire import protocol
from poprun.wire.channel import PIECE, Channel

# The exit code of ssh where the connection fails.
SSH_FAILED = 255
# How much of a command's output is kept that mpirun does not read.
MOST_UNREAD = 1 << 20
# Sends a message to the other end: its kind and fields.
Send = Callable[..., None]


class Commands:
    """The commands of one job on this host, for the agent.

    Args:
        environment: The environment of each command.
        blocked: Signals that they do not get.
    """

    def __init__(
        self,
        send: Send,
        environment: Mapping[bytes, bytes],
        blocked: Sequence[int] = (),
    ) -> None:
        self._send = send
        self._environment = environment
        self._blocked = blocked
        # The pid of each running command, by its number.
        self._pids: dict[int, int] = {}
        # By output: the number of a command, and 1 for stdout or 2.
        self._outputs: dict[DescriptorSource, tuple[int, int]] = {}

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
        self._outputs[DescriptorSource(out_read)] = number, 1
        self._outputs[DescriptorSource(err_read)] = number, 2
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
        for output in self._outputs:
            yield Interest(output.descriptor, READ, partial(self._read, output))

    def note_end(self, pid: int, status: int) -> None:
        """Take in that a child of the agent has ended."""
        for number in [number for number, p in self._pids.items() if p == pid]:
            for output in [o for o, (n, _) in self._outputs.items() if n == number]:
                while self._read(output):
                    continue
                # A process that the command has left behind may keep it open.
                if self._outputs.pop(output, None):
                    output.close()
            del self._pids[number]
            self._send(protocol.COMMAND_ENDED, number, processes.exit_code(status))

    def _read(self, output: DescriptorSource) -> bool:
        """Read and send a piece; return whether there may be more."""
        if output not in self._outputs:
            return False  # closed since poll returned
        data = output.read(PIECE)
        if data:
            self._send(protocol.COMMAND_OUTPUT, *self._outputs[output], data)
        elif data is not None:
            del self._outputs[output]
            output.close()
        return bool(data)


class RemoteCommands:
    """poprun's end of the commands on one other host.

    Args:
        shims: The commands that start the shims of its instances without mpirun.
    """

    def __init__(self, send: Send, shims: Mapping[int, bytes]) -> None:
        self._send, self._shims = send, shims
        self._numbers = count(1)
        # By the number of a running command: the connection to mpirun's remote shell,
        # or the instance whose shim it starts.
        self._shells: dict[int, Channel] = {}
        self._ranks: dict[int, int] = {}

    def run(self, shell: Channel, command: bytes) -> None:
        """Run the command of a remote shell there, and pass on what it writes."""
        number = next(self._numbers)
        self._shells[number] = shell
        self._send(protocol.RUN_COMMAND, number, command)

    def end(self, shell: Channel) -> None:
        """End the command of a remote shell."""
        for number, other in self._shells.items():
            if other is shell:
                self._send(protocol.END_COMMAND, number)

    def start_shim(self, rank: int) -> None:
        number = next(self._numbers)
        self._ranks[number] = rank
        self._send(protocol.RUN_COMMAND, number, self._shims[rank])

    def end_shim(self, rank: int) -> None:
        """End the command that starts the shim of an instance, if it runs."""
        for number, other in self._ranks.items():
            if other == rank:
                self._send(protocol.END_COMMAND, number)

    def receive_output(self, number: int, stream: int, data: bytes) -> None:
        """Pass on what a command has written to a remote shell.

        Raises:
            ValueError: There is no such command.
        """
        if number in self._ranks:
            return
        if number not in self._shells or stream not in (1, 2):
            raise ValueError("output of a command that does not run there")
        shell = self._shells[number]
        if shell.num_unsent < MOST_UNREAD:
            shell.tell(protocol.SHELL_OUTPUT, stream, data)

    def note_end(self, number: int, code: int) -> int | None:
        """Take in that a command has ended; return the instance of a shim.

        Raises:
            ValueError: There is no such command.
        """
        if number in self._ranks:
            return self._ranks.pop(number)
        if number not in self._shells:
            raise ValueError("the end of a command that does not run there")
        self._shells.pop(number).tell(protocol.SHELL_ENDED, code & 255)
        return None

    def note_loss(self) -> None:
        """Take in that the host is lost, and end mpirun's remote shells."""
        for number in list(self._shells):
            self.note_end(number, SSH_FAILED)
