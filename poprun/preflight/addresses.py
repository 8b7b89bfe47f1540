"""The address by which other hosts of a job reach this one, and its network."""

import fcntl
import socket
import struct
from contextlib import suppress

# ioctls of Linux: the address of an interface, and the mask of its network.
SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
# Any port does: nothing is sent.
DISCARD = 9


def own_address_towards(peer: str) -> str:
    """Return the address that this host sends from to another, "" if it has none."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((peer, DISCARD))
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def network_of(address: str) -> str:
    """Return the IPv4 network of an address of this host, "" if it is unknown."""
    import ipaddress

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                if _ask(sock, SIOCGIFADDR, name) == address:
                    mask = _ask(sock, SIOCGIFNETMASK, name)
                    network = ipaddress.ip_network(f"{address}/{mask}", strict=False)
                    return str(network)
    return ""


def _ask(sock: socket.socket, request: int, interface: str) -> str:
    question = struct.pack("256s", interface.encode()[:15])
    answer = fcntl.ioctl(sock.fileno(), request, question)
    return socket.inet_ntoa(answer[20:24])
