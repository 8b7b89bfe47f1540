"""The addresses and networks of this host.

Agents import this without site-packages, so there is no psutil.
"""

import array
import fcntl
import socket
import struct
from ipaddress import ip_network

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
    """Return the IPv4 and IPv6 addresses of this host, with the loopback addresses."""
    return [*_ipv4_addresses(), *_ipv6_addresses()]


def _ipv4_addresses() -> list[str]:
    length = size = 0
    # The kernel leaves out entries for which there is no room.
    while length == size:
        size = 2 * size or 64 * IFREQ_BYTES
        buffer = array.array("B", bytes(size))
        request = struct.pack("iL", size, buffer.buffer_info()[0])
        (length,) = struct.unpack_from("i", _ask(SIOCGIFCONF, request))
    return [
        socket.inet_ntoa(buffer[at + 20 : at + 24].tobytes())
        for at in range(0, length, IFREQ_BYTES)
    ]


def _ipv6_addresses() -> list[str]:
    try:
        with open("/proc/net/if_inet6", encoding="utf-8") as file:
            digits = [line.split()[0] for line in file]
    except OSError:  # a kernel without IPv6
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(d)) for d in digits]


def network_of(address: str) -> str:
    """Return the IPv4 network of an address of this host, "" if it is unknown."""
    for _, name in socket.if_nameindex():
        request = struct.pack("256s", name.encode()[:15])
        try:
            own, mask = (
                socket.inet_ntoa(_ask(number, request)[20:24])
                for number in (SIOCGIFADDR, SIOCGIFNETMASK)
            )
        except OSError:  # it has no IPv4 address
            continue
        if own == address:
            return str(ip_network(f"{address}/{mask}", strict=False))
    return ""


def _ask(number: int, request: bytes) -> bytes:
    """Return what the kernel answers to an ioctl about IPv4."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock.fileno(), number, request)
