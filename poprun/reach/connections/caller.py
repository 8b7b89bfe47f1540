"""The agent's view of the connector that has started it."""

import errno
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poprun.reach.connections.silence import acknowledges_nothing, ends_of
from poprun.reach.own_host.addresses import own_address_towards

SSH_CONNECTION = "SSH_CONNECTION"
# The address and the port of srun, which it tells its tasks.
LAUNCH_ADDRESS = "SLURM_LAUNCH_NODE_IPADDR"
HOST, PORT = "SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT"
# Its host is gone if so many looks in turn have found no answer.
MOST_UNANSWERED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The process on poprun's host that has started an agent."""

    # The environment of the agent, without variables that are wrong on this host.
    environ: Mapping[str, str]
    # The address of this host for other hosts, "" if it is unknown.
    address: str
    # Returns whether the caller is gone, once it is silent; None if nothing shows it.
    is_gone: Callable[[], bool] | None
    # Slurm sends SIGTERM to all processes of a job that it ends.
    is_slurm: bool = False


def find_caller(name: str, environ: Mapping[str, str]) -> Caller:
    """Return the caller of this process.

    Args:
        name: The name of the connector.
        environ: The environment that the agent was started with.
    """
    if name == "srun":
        launcher = environ.get(LAUNCH_ADDRESS)
        return Caller(
            # poprun may have come to its host by ssh.
            environ={n: v for n, v in environ.items() if n != SSH_CONNECTION},
            address=own_address_towards(launcher) if launcher else "",
            is_gone=SrunPort(environ).is_gone,
            is_slurm=True,
        )
    client, server = ends_of(environ.get(SSH_CONNECTION, ""))
    address = server.partition(" ")[0]
    if not address and name != "ssh":
        address = address_of_own_name()
    return Caller(
        environ=environ,
        address=address,
        is_gone=acknowledges_nothing(server, client),
    )


def address_of_own_name() -> str:
    """Return the address of this host's name, "" if only this host reaches it.

    A pod of Kubernetes has its name and address in /etc/hosts.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return "" if address.startswith("127.") else address


class SrunPort:
    """The port on which srun listens.

    The agent's stdin and stdout are pipes of Slurm's daemon, which stay open when srun
    is killed. But the kernel of srun's host closes this port with it.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        port = environ.get(PORT, "")
        self._address = environ.get(HOST, ""), int(port) if port.isdigit() else 0
        self._connecting: socket.socket | None = None
        self._num_unanswered = 0

    def is_gone(self) -> bool:
        """Return whether nothing listens there any more, or its host is gone.

        It does not wait: the answer to what one call asks is found by the next.
        """
        host, port = self._address
        if not (host and port):
            return False
        if self._connecting is None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._connecting = socket.socket(family, socket.SOCK_STREAM)
            self._connecting.setblocking(False)
        try:
            error = self._connecting.connect_ex(self._address)
        except OSError:  # a name that cannot be resolved now
            error = 0
        if error in (errno.EINPROGRESS, errno.EALREADY):
            self._num_unanswered += 1
            if self._num_unanswered <= MOST_UNANSWERED:
                return False
        self._connecting.close()
        self._connecting = None
        self._num_unanswered = 0
        return error != 0
