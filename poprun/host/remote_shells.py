"""The remote shells of mpirun: each runs one command on another host of the job."""

from typing import Any

from poprun.host.commands import RemoteCommands
from poprun.host.control_socket import Handler, Messages
from poprun.wire import protocol
from poprun.wire.channel import Channel


class RemoteShells:
    """Passes the commands of remote shells on to the hosts.

    Args:
        is_in_slurm: Whether Slurm may send SIGTERM to the commands.
        is_unique: Whether each command is run once only, as poprun's own launcher does.
    """

    def __init__(self, *, is_in_slurm: bool, is_unique: bool) -> None:
        self._is_in_slurm, self._is_unique = is_in_slurm, is_unique
        self._commands: set[tuple[str, bytes]] = set()
        # By the names that mpirun knows the hosts by.
        self.hosts: dict[str, RemoteCommands] = {}
        self.local_name = ""

    def handler(self) -> Handler:
        return Handler(accept=self._on_shell, receive=self._on_message)

    def _on_shell(self, link: Channel, fields: list[Any]) -> bool:
        name, command = fields[0].decode(errors="replace"), fields[1]
        if name == self.local_name:
            link.tell(protocol.SHELL_HERE, int(self._is_in_slurm))
            return True
        if name not in self.hosts:
            reason = f"{name} is not a host of this job.\n".encode()
            link.tell(protocol.SHELL_OUTPUT, 2, reason)
            link.tell(protocol.SHELL_ENDED, 255)
            return True
        if self._is_unique and (name, command) in self._commands:
            # The local launcher runs all failed commands again. poprun starts
            # the shims of other hosts itself.
            link.tell(protocol.SHELL_ENDED, 255)
            return True
        self._commands.add((name, command))
        self.hosts[name].run(link, command)
        return True

    def _on_message(self, link: Channel, messages: Messages | None) -> None:
        """End the command of a shell that has ended."""
        if messages is None:
            for commands in self.hosts.values():
                commands.end(link)
