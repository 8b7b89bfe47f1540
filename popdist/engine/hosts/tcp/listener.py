"""Where an instance listens for connections of others, and accepts them."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from math import inf
from threading import Lock
from time import monotonic, sleep
from typing import NamedTuple

from popdist.engine.handle import Helper
from popdist.engine.hosts.tcp.handshake import StrangerError, examine
from popdist.errors import ArenaError

Address = tuple[str, int]

# How long instance 0 waits for its port, which an earlier attempt may still have.
_BIND_SECONDS = 5.0
# As many as a job can have instances. The kernel takes no more than net.core.somaxconn.
# To a process that connects beyond that, this host looks as if it did not answer.
_BACKLOG = 65536
# The most connections without a proof.
_MOST_UNPROVEN = 256
_PAUSE = 0.05


class TcpRoot(NamedTuple):
    """Where instance 0 listens for links by TCP, and the secret of the job.

    listener: The socket of instance 0, if it has one already.
    silence_limit: For how many seconds the host may answer nothing until it is lost:
        inf if it may not be up yet.
    """

    host: str
    port: int
    key: bytes
    listener: socket.socket | None = None
    silence_limit: float = inf


class Listener:
    """Accepts connections in a thread, from instances that know the key of the job.

    Any process that reaches the address may connect. If many do so without a proof, the
    oldest of these connections are ended; instances connect again.
    """

    def __init__(
        self,
        listening: socket.socket,
        key: bytes,
        rank: int,
        size: int,
        add: Callable[[int, int], None],
    ) -> None:
        """Accept connections from now on.

        Args:
            add: Gets the number of an instance that has connected, and the descriptor.
        """
        self._listening, self._add = listening, add
        self._key, self._rank, self._size = key, rank, size
        # Accepted connections without a proof yet, the oldest first.
        self._unproven: dict[socket.socket, None] = {}
        self._lock = Lock()
        self._closed = False
        self._thread = Helper(target=self._accept, name="popdist accepts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections, and end those without a proof."""
        self._closed = True
        # It wakes the thread; close() alone would not.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        self._end_oldest(0)

    def disown(self) -> None:
        """Close the parent's socket in a forked child."""
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
                with self._lock:
                    self._unproven[connection] = None
                # Each in a thread: one may be slow.
                Helper(
                    target=self._answer,
                    args=(connection,),
                    name="popdist answers",
                    daemon=True,
                ).start()
            except (OSError, RuntimeError):
                if self._closed:
                    return
                # There are no descriptors, memory or threads left for now.
                self._end_oldest(0)
                sleep(_PAUSE)
            self._end_oldest(_MOST_UNPROVEN)

    def _end_oldest(self, count: int) -> None:
        """End the oldest connections without a proof, but for so many."""
        with self._lock:
            oldest = list(self._unproven)[: max(len(self._unproven) - count, 0)]
            for connection in oldest:
                del self._unproven[connection]
                # Its thread closes it.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, connection: socket.socket) -> None:
        try:
            instance, proof = examine(connection, self._key, self._rank, self._size)
            # From the proof on, the other end takes this one for connected.
            with self._lock:
                del self._unproven[connection]
            connection.sendall(proof)
        except (OSError, StrangerError, KeyError):
            with self._lock:
                self._unproven.pop(connection, None)
            connection.close()
            return
        # The links may have come to their end meanwhile.
        with suppress(OSError):
            self._add(instance, connection.detach())


def listen(address: Address) -> socket.socket:
    """Return a socket that listens at the address, or at any port in place of 0."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG)


def listen_as_root(root: TcpRoot) -> socket.socket:
    """Listen at the address that all instances have been told.

    Raises:
        ArenaError: It is no address of this host for others, or the port is in use.
    """
    until = monotonic() + _BIND_SECONDS
    while True:
        try:
            return listen(_address_for_others(root))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and monotonic() < until:
                sleep(_PAUSE)
                continue
            is_of_name = isinstance(error, socket.gaierror)
            reason = error.strerror if is_of_name else os.strerror(error.errno or 0)
            raise ArenaError(
                f"Instance 0 cannot listen at {root.host}:{root.port}, where the other "
                f"instances are to reach it by TCP: {reason}. The host must be an "
                "address of instance 0's host, and no other process may use the port. "
                "If poprun has chosen it, start the job again: it chooses another one."
            ) from error


def _address_for_others(root: TcpRoot) -> Address:
    """Return the address of a root, which may be a name.

    Raises:
        ArenaError: Other hosts cannot reach it.
    """
    found = socket.getaddrinfo(root.host, root.port, type=socket.SOCK_STREAM)
    address = str(found[0][4][0])
    is_name = root.host not in (address, "localhost")
    if is_name and ip_address(address.partition("%")[0]).is_loopback:
        raise ArenaError(
            f"Instance 0 would listen at {address}, because {root.host} has this "
            "address on its own host, where other hosts cannot reach it. Give "
            "POPDIST_LINKS an address of that host in place of its name; hostname -I "
            "lists them."
        )
    return address, root.port
