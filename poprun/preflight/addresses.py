"""The address by which other hosts of a job reach this one, and its network."""

import array
import fcntl
import socket
import struct
from contextlib import suppress

# ioctls of Linux: all IPv4 addresses, and how long the entry of one is; the address of
# an interface, and the mask of its network.
SIOCGIFCONF, IFREQ_BYTES = 0x8912, 40
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


def own_addresses() -> list[str]:
    """Return the IPv4 and IPv6 addresses of this host, those of loopback among them."""
    return [*_ipv4_addresses(), *_ipv6_addresses()]


def _ipv4_addresses() -> list[str]:
    entries = 64
    while True:
        buffer = array.array("B", bytes(entries * IFREQ_BYTES))
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = fcntl.ioctl(sock.fileno(), SIOCGIFCONF, request)
        (length,) = struct.unpack_from("i", answer)
        # The kernel leaves out what has no room.
        if length < len(buffer):
            break
        entries *= 2
    return [
        socket.inet_ntoa(buffer[at + 20 : at + 24].tobytes())
        for at in range(0, length, IFREQ_BYTES)
    ]


def _ipv6_addresses() -> list[str]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            digits = [line.split()[0] for line in file]
    except OSError:  # a kernel without IPv6
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(d)) for d in digits]


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
