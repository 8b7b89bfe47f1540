"""The srun that has started an agent, as the agent sees it.

The agent's stdin and stdout are pipes of Slurm's daemon, which stay open when srun is
killed. But srun listens on a port, which the kernel of its host closes with it.
"""

import _socket
import errno
import select
from collections.abc import Mapping

# The word by which the agent knows that srun has started it.
SRUN = "srun"
# What it says where processors are not bound to tasks, which is no failure.
_NO_FAILURE = "cluster configuration lacks support for cpu binding"
# Where srun runs and where it listens, as it tells its tasks.
LAUNCH_ADDRESS = "SLURM_LAUNCH_NODE_IPADDR"
HOST, PORT = "SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT"
# Its host is gone if so many looks in turn have found no answer.
MOST_UNANSWERED = 8


def failures_in(text: str) -> str:
    """Return what srun, or what it runs, says of failures."""
    return "\n".join(s for s in text.splitlines() if _NO_FAILURE not in s).strip()


class SrunPort:
    """The port on which srun listens."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        port = environ.get(PORT, "")
        self._address = environ.get(HOST, ""), int(port) if port.isdigit() else 0
        self._connecting: _socket.socket | None = None
        self._num_unanswered = 0

    def is_gone(self) -> bool:
        """Return whether nothing listens there any more, or its host is gone.

        It does not wait: the answer to what one call asks is found by the next.
        """
        if not all(self._address):
            return False
        if self._connecting is None:
            return self._connect() not in (0, errno.EINPROGRESS)
        poll = select.poll()
        poll.register(self._connecting, select.POLLOUT)
        if not poll.poll(0):
            self._num_unanswered += 1
            if self._num_unanswered < MOST_UNANSWERED:
                return False
            error = errno.ETIMEDOUT
        else:
            error = self._connecting.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        self._connecting.close()
        self._connecting = None
        self._num_unanswered = 0
        return error != 0

    def _connect(self) -> int:
        """Begin to connect; return the error."""
        family = _socket.AF_INET6 if ":" in self._address[0] else _socket.AF_INET
        sock = _socket.socket(family, _socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            error = sock.connect_ex(self._address)
        except OSError:  # a name that cannot be resolved now
            error = 0
        if error == errno.EINPROGRESS:
            self._connecting = sock
        else:
            sock.close()
        return error
