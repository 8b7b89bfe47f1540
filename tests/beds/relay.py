"""Passes frames between two network devices, those of the first one late or never.

What `tc qdisc ... netem` does, for kernels that have no netem.
Arguments: the two devices, the delay in milliseconds, the share that is lost.
"""

import errno
import os
import random
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
# A frame that a sender leaves to the network device to divide, with its headers.
LONGEST_FRAME = 70_000
BUFFER_BYTES = 64 << 20


def open_device(name: str) -> socket.socket:
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    # Frames come with what is still to be done to them: checksums, the division.
    device.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    device.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    device.bind((name, ETH_P_ALL))
    device.setblocking(False)
    return device


def frames(device: socket.socket):
    """Yield the frames that have come in."""
    try:
        while True:
            yield device.recv(LONGEST_FRAME)
    except BlockingIOError:
        return
    except OSError as error:
        # The host has ended, and its end of the link with it.
        if error.errno == errno.ENETDOWN:
            sys.exit()
        raise


def send(device: socket.socket, frame: bytes) -> None:
    # A full queue loses frames, as that of a switch does.
    with suppress(OSError):
        device.send(frame)


def main() -> None:
    host, switch = open_device(sys.argv[1]), open_device(sys.argv[2])
    delay, loss = float(sys.argv[3]) / 1000, float(sys.argv[4])
    # A network does not wait for processors, of which tests leave few idle.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("relaying", flush=True)
    late: deque[tuple[float, bytes]] = deque()
    while True:
        wait = max(0, late[0][0] - time.monotonic()) if late else None
        select.select([host, switch], [], [], wait)
        for frame in frames(switch):
            send(host, frame)
        due = time.monotonic() + delay
        late.extend((due, frame) for frame in frames(host) if random.random() >= loss)
        while late and late[0][0] <= time.monotonic():
            send(switch, late.popleft()[1])


main()
