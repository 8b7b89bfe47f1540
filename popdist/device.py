"""The device of this process: poprun attaches it, until the process ends."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from popdist import environment as env
from popdist.environment import Instance
from popdist.errors import DeviceError

if TYPE_CHECKING:
    from popdist.control import ControlConnection

# Equal to the values in poprun/wire/protocol.py, which popdist does not import.
ATTACH, ATTACHED, NOT_ATTACHED = 42, 60, 61
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
    connection, device = _ask(environ, instance, num_ipus)
    _attached = _Attached(pid, control, connection.detach(), device)
    return device


def _ask(
    environ: Mapping[str, str], instance: Instance, num_ipus: int
) -> "tuple[ControlConnection, int]":
    # Not above: most programs with replicas need no device.
    from popdist.control import VERSION, ControlConnection

    connection: ControlConnection | None = None
    try:
        connection = ControlConnection(environ, _timeout(environ))
        numbers = instance.index, num_ipus
        connection.send(ATTACH, VERSION, connection.key, *numbers)
        kind, fields = connection.receive()
        if len(fields) != 1 or not (
            kind == NOT_ATTACHED or (kind == ATTACHED and fields[0].isdigit())
        ):
            raise OSError(0, "its answer is not valid")
    except OSError as error:
        if connection is not None:
            connection.close()
        late = isinstance(error, TimeoutError)
        reason = "it did not answer in time" if late else error.strerror
        raise DeviceError(
            f"Instance {instance.index} cannot attach to its device "
            f"({num_ipus} IPUs) of partition {environ[env.VIPU_API_PARTITION_ID]}, "
            "because poprun, which holds the IPUs of the job, cannot be asked: "
            f"{reason or error}. Start the job again."
        ) from None
    if kind == ATTACHED:
        return connection, int(fields[0])
    connection.close()
    raise DeviceError(fields[0].decode(errors="replace"))


def _timeout(environ: Mapping[str, str]) -> float:
    text = environ.get(env.VIPU_API_TIMEOUT, "")
    return MARGIN_S + (int(text) if text.isascii() and text.isdigit() else 0)
