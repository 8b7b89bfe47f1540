"""Finds TCP ports of this host on which instances may listen.

It uses _socket, because the module `socket` takes 4 ms to import.
"""

import _socket
import os

# Where instances may listen: above the ports of well-known servers.
FIRST_PORT = 10_000
# The first and the last of the ports that Linux assigns to sockets by itself.
ASSIGNED_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
# How many ports to try before one that the kernel assigns is taken.
MOST_DRAWS = 100


def free_ports(count: int) -> list[int]:
    """Return so many TCP ports of this host that no process listens on."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(_free_port())
    return list(ports)


def _free_port() -> int:
    """Return a TCP port of this host that no process listens on.

    It lies below the ports that the kernel assigns to sockets by itself, as the job may
    listen on it long after: one of those may be assigned to another process by then.
    """
    end = _first_assigned_port()
    for _ in range(MOST_DRAWS if end > FIRST_PORT else 0):
        port = FIRST_PORT + int.from_bytes(os.urandom(4)) % (end - FIRST_PORT)
        try:
            return _bind(port)
        except OSError:
            continue
    return _bind(0)


def _first_assigned_port() -> int:
    """Return the first port that the kernel assigns by itself; 0 if it is unknown."""
    try:
        with open(ASSIGNED_PORTS) as ports:
            first, _ = ports.read().split()
            return int(first)
    except (OSError, ValueError):
        return 0


def _bind(port: int) -> int:
    """Return the port, or one that the kernel assigns instead of 0, if it is free."""
    sock = _socket.socket()
    try:
        sock.bind(("", port))
        return int(sock.getsockname()[1])
    finally:
        sock.close()
