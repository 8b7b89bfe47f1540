"""The remote shells of mpirun: each runs one command on another host of the job."""

from typing import Any

from poprun.host.control_socket import Handler, Messages
from poprun.host.remote_host import RemoteHost
from poprun.wire import protocol
from poprun.wire.channel import Channel

# How much of a command's output is kept that mpirun does not read.
MOST_UNREAD = 1 << 20


class RemoteShells:
    """Passes commands on to the hosts, and what they write back to the shells.

    Args:
        is_in_slurm: Whether Slurm may send SIGTERM to the commands.
    """

    def __init__(self, *, is_in_slurm: bool) -> None:
        self._is_in_slurm = is_in_slurm
        # By the names that mpirun knows them by.
        self.hosts: dict[str, RemoteHost] = {}
        self.local_name = ""
        self._shells: dict[int, tuple[Channel, RemoteHost]] = {}
        self._last = 0

    def handler(self) -> Handler:
        return Handler(accept=self._on_shell, receive=self._on_message)

    def write(self, number: int, stream: int, data: bytes) -> None:
        """Pass on what a command has written; with stream 0, its exit code."""
        if number not in self._shells:
            return
        link, _ = self._shells[number]
        if stream and link.num_unsent < MOST_UNREAD:
            link.send(protocol.pack(protocol.SHELL_OUTPUT, stream, data))
        elif not stream:
            link.send(protocol.pack(protocol.SHELL_ENDED, data))
            del self._shells[number]

    def _on_shell(self, link: Channel, fields: list[Any]) -> bool:
        name, command = fields[0].decode(errors="replace"), fields[1]
        if name == self.local_name:
            link.send(protocol.pack(protocol.SHELL_HERE, int(self._is_in_slurm)))
            return True
        if name not in self.hosts:
            reason = f"{name} is not a host of this job.\n".encode()
            link.send(protocol.pack(protocol.SHELL_OUTPUT, 2, reason))
            link.send(protocol.pack(protocol.SHELL_ENDED, 255))
            return True
        self._last += 1
        self._shells[self._last] = link, self.hosts[name]
        self.hosts[name].run(self._last, command)
        return True

    def _on_message(self, link: Channel, messages: Messages | None) -> None:
        """End the command of a shell that has ended."""
        if messages is not None:
            return
        for number, (other, host) in list(self._shells.items()):
            if other is link:
                host.end_run(number)
                del self._shells[number]
