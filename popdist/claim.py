"""The claim of one process to be an instance in collectives."""

import errno
import os
from typing import TYPE_CHECKING

from popdist.errors import GroupUnusableError

if TYPE_CHECKING:
    from _socket import socket


class Claim:
    """An abstract unix socket, which only one process can have for each instance.

    A process that an instance starts inherits its variables. It would take the
    instance's place in a group before the instance joins, or wait in vain afterwards.
    The socket ends with the process, and with exec().
    """

    def __init__(self) -> None:
        self._socket: socket | None = None
        # The device and inode of the socket: the program may close any descriptor, and
        # get the same number for another file.
        self._file: tuple[int, int] | None = None

    def acquire(self, shared_name: str, rank: int) -> None:
        """Claim to be this instance, until the claim is released.

        Raises:
            GroupUnusableError: Another process has claimed it.
        """
        # Not above: only programs with collectives need them.
        from popdist.engine.meet.connection import connect, listen
        from popdist.engine.meet.group_name import address_of
        from popdist.engine.shm.heap import file_of

        if self._socket is not None:
            return
        address = address_of(f"{shared_name} instance {rank}")
        try:
            self._socket = listen(address, 128)
            self._file = file_of(self._socket.fileno())
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        other = connect(address)
        if other is None:
            # Very many processes connect to it, or it has just ended.
            process = "Another process"
        else:
            other.close()
            if other.uid != os.geteuid() or other.pid == os.getpid():
                return
            process = f"Process {other.pid}"
        raise GroupUnusableError(
            f"{process} has joined its groups as instance {rank} and takes part in "
            f"collectives itself, so process {os.getpid()} cannot. Make the calls in "
            "that process, or start a separate job with poprun."
        )

    def release(self) -> None:
        """Release the claim, so that another process can be this instance."""
        if self._socket is None:
            return
        # Not above, as in acquire().
        from popdist.engine.shm.heap import file_of

        if file_of(self._socket.fileno()) == self._file:
            self._socket.close()
        else:
            self._socket.detach()
        self._socket = None
