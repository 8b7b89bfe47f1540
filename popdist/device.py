"""The device of this process: poprun attaches it, until the process ends."""

import os
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from popdist import environment as env
from popdist.environment import Instance
from popdist.errors import DeviceError

if TYPE_CHECKING:
    import socket

# Equal to the values in poprun/wire/protocol.py, which popdist does not import.
VERSION, ATTACH, ATTACHED, NOT_ATTACHED = 1, 42, 60, 61
LONGEST_ANSWER = 1 << 16
# poprun waits for the V-IPU inventory, and that may wait for a server.
MARGIN_S = 60.0


class _Attached(NamedTuple):
    """STATE: that this process is attached.

    The descriptor of the connection to poprun is closed by the end of the process, and
    poprun detaches it then.
    """

    pid: int
    control: str
    descriptor: int
    device: int


_attached: _Attached | None = None


def is_emulated(environ: Mapping[str, str]) -> bool:
    """Return whether the devices of this job are in a V-IPU inventory of poprun's."""
    return (
        bool(environ.get(env.CONTROL))
        and bool(environ.get(env.VIPU_API_PARTITION_ID))
        and environ.get(env.OFFLINE_MODE) == "0"
    )


def check_has_ipus(environ: Mapping[str, str]) -> None:
    """Check that the job has IPUs, or was told to run a program for IPUs without any.

    Raises:
        DeviceError: No option has asked for IPUs; the sentence names one that does.
    """
    if giver := environ.get(env.OFFLINE_BECAUSE_OF):
        raise DeviceError(
            f"This job runs without IPUs: its size comes from {giver}, and no option "
            "is about replicas, IPUs or V-IPU. Add --offline-mode=no to poprun's "
            "options."
        )


def attach(environ: Mapping[str, str], instance: Instance) -> int:
    """Attach this process to the device of its instance; return the device's id.

    Raises:
        DeviceError: It cannot be attached; the sentence says to what, and why.
    """
    global _attached
    pid, control = os.getpid(), environ[env.CONTROL]
    # After a fork it is the parent's. The descriptor is left as it is: the program may
    # have closed it, and another may have its number.
    if _attached is not None and _attached[:2] == (pid, control):
        return _attached.device
    num_ipus = instance.num_local_replicas * instance.num_ipus_per_replica
    sock, device = _ask(environ, instance, num_ipus)
    _attached = _Attached(pid, control, sock.detach(), device)
    return device


def _ask(
    environ: Mapping[str, str], instance: Instance, num_ipus: int
) -> "tuple[socket.socket, int]":
    import socket

    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_timeout(environ))
        name, _, key = os.fsencode(environ[env.CONTROL]).partition(b"/")
        sock.connect(b"\0" + name[1:])
        _check_user(sock)
        numbers = (b"%d" % number for number in (instance.index, num_ipus))
        sock.sendall(_pack(ATTACH, b"%d" % VERSION, key, *numbers))
        kind, field = _receive(sock)
    except OSError as error:
        sock.close()
        late = isinstance(error, TimeoutError)
        reason = "it did not answer in time" if late else error.strerror
        raise DeviceError(
            f"Instance {instance.index} cannot attach to its device "
            f"({num_ipus} IPUs) of partition {environ[env.VIPU_API_PARTITION_ID]}, "
            "because poprun, which holds the IPUs of the job, cannot be asked: "
            f"{reason or error}. Start the job again."
        ) from None
    if kind == ATTACHED:
        return sock, int(field)
    sock.close()
    raise DeviceError(field.decode(errors="replace"))


def _timeout(environ: Mapping[str, str]) -> float:
    text = environ.get(env.VIPU_API_TIMEOUT, "")
    return MARGIN_S + (int(text) if text.isascii() and text.isdigit() else 0)


def _check_user(sock: "socket.socket") -> None:
    """Check that poprun listens: when it is dead, any user can under its name."""
    import socket

    size = struct.calcsize("3i")
    _, user, _ = struct.unpack(
        "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if user != os.geteuid():
        raise PermissionError(0, f"its socket belongs to user {user}")


def _pack(kind: int, *fields: bytes) -> bytes:
    body = bytes([kind]) + b"".join(len(f).to_bytes(4, "big") + f for f in fields)
    return len(body).to_bytes(4, "big") + body


def _receive(sock: "socket.socket") -> tuple[int, bytes]:
    """Return the kind and the only field of the answer."""
    with sock.makefile("rb") as stream:
        length = int.from_bytes(_read(stream, 4), "big")
        if not 5 <= length <= LONGEST_ANSWER:
            raise OSError(0, "its answer is not valid")
        message = _read(stream, length)
    kind, field = message[0], message[5:]
    if kind != NOT_ATTACHED and not (kind == ATTACHED and field.isdigit()):
        raise OSError(0, "its answer is not valid")
    return kind, field


def _read(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise ConnectionResetError(0, "it has ended, or does not know this job")
    return data
