"""Whether the other end of a connection is lost, or only says nothing.

A stopped process sends nothing, but its host still acknowledges data. So silence alone
ends nothing: a host is lost when it is silent and acknowledges nothing, either.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf

# How often each end sends something, so that there is something to acknowledge.
ALIVE_S = 2.0
# After so much silence the acknowledgements are looked at, and how often then.
SILENT_S = 8.0
# The same where others take the other end for lost: popdist's rule for its connections.
SUSPECTED_S = 5.0
LOOK_AGAIN_S = 0.5
# How often the kernel has sent the same again, at doubling intervals from 0.2 s.
MOST_REPEATS = 4
TABLES = (("/proc/net/tcp", 4), ("/proc/net/tcp6", 16))
ESTABLISHED = "01"


class Silence:
    """When the other end was heard last, and when to send something to it.

    Args:
        is_gone: Returns whether the other end is gone, as far as can be seen when it
            is silent; None where nothing can be seen.
    """

    def __init__(self, is_gone: Callable[[], bool] | None, now: float) -> None:
        self._is_gone = is_gone
        self._sent_at = now
        self._silent_s = SILENT_S
        self.note_heard(now)

    def note_heard(self, now: float) -> None:
        self._heard_at, self._look_at = now, now + self._silent_s

    def expect_loss(self, now: float) -> None:
        """Look for the other end from now on after the shortest silence."""
        self._silent_s = LOOK_AGAIN_S
        self.note_heard(now)

    def suspect(self) -> None:
        """Look for the other end earlier: others take it for lost.

        It counts until the other end is heard again.
        """
        self._look_at = min(self._look_at, self._heard_at + SUSPECTED_S)

    def note_sent(self, now: float) -> None:
        self._sent_at = now

    def must_send(self, now: float) -> bool:
        return now >= self._sent_at + ALIVE_S

    def deadline(self) -> float:
        look_at = inf if self._is_gone is None else self._look_at
        return min(self._sent_at + ALIVE_S, look_at)

    def is_lost(self, now: float) -> bool:
        """Return whether the other end has been silent, and is gone."""
        if now < self._look_at or self._is_gone is None:
            return False
        self._look_at = now + LOOK_AGAIN_S
        return self._is_gone()


def acknowledges_nothing(own: str, peer: str) -> Callable[[], bool] | None:
    """Return what looks whether the peer of a TCP connection acknowledges nothing.

    Args:
        own: Our address and port, "" if they are not known: then there is nothing
            to look at.
    """
    if not own:
        return None
    return lambda: repeats(own, peer) >= MOST_REPEATS


def peer_of_process_is_gone(pid: int) -> bool:
    """Return whether a peer of a process acknowledges nothing that this sends it."""
    inodes = _sockets_of(pid)
    return any(
        row[9] in inodes and row[3] == ESTABLISHED and int(row[6], 16) >= MOST_REPEATS
        for path, _ in TABLES
        for row in _rows(path)
    )


def _sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets, none if it has ended."""
    directory = f"/proc/{pid}/fd"
    links = []
    with suppress(OSError):
        for name in os.listdir(directory):
            with suppress(OSError):  # it has been closed meanwhile
                links.append(os.readlink(f"{directory}/{name}"))
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def ends_of(ssh_connection: str) -> tuple[str, str]:
    """Return the client's and the server's end in a value of SSH_CONNECTION."""
    words = ssh_connection.split()
    try:
        client, client_port, server, server_port = words
        ends = f"{client} {client_port}", f"{server} {server_port}"
        for end in ends:
            _encode(end, 16)
    except (ValueError, OSError):  # not from ssh
        return "", ""
    return ends


def repeats(own: str, peer: str) -> int:
    """Return how often the kernel has repeated what a peer does not acknowledge.

    Args:
        own: An address and a port, with a space between them.
    """
    for path, size in TABLES:
        wanted = _encode(own, size), _encode(peer, size)
        for row in _rows(path):
            if (row[1], row[2]) == wanted:
                return int(row[6], 16)
    return 0


def _rows(path: str) -> Iterator[list[str]]:
    """Yield the rows of one of the kernel's tables, each cut into its columns."""
    try:
        with open(path, encoding="utf-8") as table:
            next(table)
            for line in table:
                yield line.split()
    except OSError:
        return


def _encode(end: str, size: int) -> str:
    """Return an address and a port as the kernel's tables have them."""
    text, _, port = end.partition(" ")
    address = text.partition("%")[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    mapped = bytes(10) + b"\xff\xff"
    if size == 4:
        packed = packed.removeprefix(mapped)
    elif len(packed) == 4:
        packed = mapped + packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    numbers = (int.from_bytes(word, sys.byteorder) for word in words)
    return "".join(f"{n:08X}" for n in numbers) + f":{int(port):04X}"
