"""The guard of an agent: its parent, which ends the job there if the agent is killed.

It is the same program as beside poprun on its own host (helpers/guard.py), without an
mpirun.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import _socket
import os

from poprun.helpers import own_process
from poprun.helpers.helper_commands import PYTHON
from poprun.wire import messages, protocol
from poprun.wire.channel import Channel


def go_on_below_guard(connection: int) -> Channel:
    """Let this process become a guard, and a child of it return the connection to it.

    sshd or slurmstepd, whose child the guard is, ends when the guard has ended what is
    left. This process must be a subreaper: then the guard is one before it has come up.

    Args:
        connection: Where the guard tells poprun that the agent is gone.

    Raises:
        OSError: There can be no more processes or descriptors.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    inode = os.fstat(ours.fileno()).st_ino
    if agent := os.fork():
        try:
            # Until the guard handles them: Slurm may send one to all at any time.
            _signal.pthread_sigmask(_signal.SIG_BLOCK, own_process.HELPER_SIGNALS)
            number = os.dup(theirs.fileno())
            os.set_inheritable(number, True)
            numbers = map(str, (number, agent, inode))
            os.execv(PYTHON[0], (*PYTHON, "guard", *numbers))
        finally:
            # The child ends, too, when it finds that it has no guard.
            os._exit(127)
    theirs.close()
    # What a child does not inherit.
    own_process.become_subreaper()
    own_process.continue_regularly()
    guard = Channel(ours)
    last_message = protocol.pack(messages.SUPERVISOR_LOST, messages.AGENT)
    guard.send(protocol.pack(protocol.LAST_MESSAGE, last_message), (connection,))
    return guard
