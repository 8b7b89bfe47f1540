"""The address by which other hosts of a job reach this one, and its network.

Agents import this, so it does without the modules `socket` and `ipaddress`.
"""

import array
import fcntl
import socket
import struct

# ioctls of Linux: all IPv4 addresses, and how long the entry of one is; the address of
# an interface, and the mask of its network.
SIOCGIFCONF, IFREQ_BYTES = 0x8912, 40
SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
# Any port does: nothing is sent.
DISCARD = 9


def own_address_towards(peer: str) -> str:
    """Return the address that this host sends from to another, "" if it has none."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    sock = None
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.connect((peer, DISCARD))
        return str(sock.getsockname()[0])
    except OSError:
        return ""
    finally:
        if sock is not None:
            sock.close()


def own_addresses() -> list[str]:
    """Return the IPv4 and IPv6 addresses of this host, those of loopback among them."""
    return [*_ipv4_addresses(), *_ipv6_addresses()]


def _ipv4_addresses() -> list[str]:
    entries = 64
    while True:
        buffer = array.array("B", bytes(entries * IFREQ_BYTES))
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        answer = _ask(SIOCGIFCONF, request)
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
        with open("/proc/net/if_inet6", encoding="utf-8") as file:
            digits = [line.split()[0] for line in file]
    except OSError:  # a kernel without IPv6
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(d)) for d in digits]


def network_of(address: str) -> str:
    """Return the IPv4 network of an address of this host, "" if it is unknown."""
    for _, name in socket.if_nameindex():
        interface = struct.pack("256s", name.encode()[:15])
        try:
            if _address_in(_ask(SIOCGIFADDR, interface)) != address:
                continue
            mask = _address_in(_ask(SIOCGIFNETMASK, interface))
        except OSError:  # it has no IPv4 address
            continue
        bits = _number(mask)
        network = (_number(address) & bits).to_bytes(4, "big")
        return f"{socket.inet_ntoa(network)}/{bits.bit_count()}"
    return ""


def _ask(number: int, request: bytes) -> bytes:
    """Return what the kernel answers to an ioctl about IPv4."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        return fcntl.ioctl(sock.fileno(), number, request)
    finally:
        sock.close()


def _address_in(answer: bytes) -> str:
    """Return the address in the kernel's answer about an interface."""
    return socket.inet_ntoa(answer[20:24])


def _number(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address), "big")
