"""PopART's session options and device for the replicas of this instance.

They work with Graphcore's PopART if it is installed, and otherwise with the stand-in.
"""

import os
from typing import TYPE_CHECKING

import popdist
from popdist import environment as env

if TYPE_CHECKING:
    from popart import DeviceConnectionType, DeviceInfo, SessionOptions

try:
    import popart
except ModuleNotFoundError as error:
    if error.name != "popart":
        raise
    raise ModuleNotFoundError(
        "popdist.popart needs popart, which is not installed. Its stand-in can be "
        "imported under poprun. Elsewhere, `python -m popdist.sdk enable` makes it "
        "importable in this environment, and `python -m popdist.sdk PROGRAM` for one "
        "program.",
        name="popart",
    ) from None

__all__ = ["configureSessionOptions", "getDevice"]

# The stand-in has only enumerations where onnx or torch are missing: this says so.
_SESSION_OPTIONS = popart.SessionOptions
# The stand-in computes without devices, so it does so in offline mode too.
_IS_STAND_IN = getattr(popart, "__stand_in__", False)


def configureSessionOptions(opts: "SessionOptions") -> None:
    """Set the options of replicated graphs to poprun's values.

    Without poprun they are for one instance with one replica.

    Raises:
        TypeError: `opts` is not a SessionOptions object.
    """
    if not isinstance(opts, _SESSION_OPTIONS):
        raise TypeError(
            f"configureSessionOptions got {opts!r}, but needs a popart.SessionOptions."
        )
    local, total = popdist.getNumLocalReplicas(), popdist.getNumTotalReplicas()
    # PopART refuses replicated graphs of one replica.
    opts.enableReplicatedGraphs = local > 1
    opts.replicatedGraphCount = local
    opts.enableDistributedReplicatedGraphs = total > local
    opts.globalReplicaOffset = popdist.getReplicaIndexOffset()
    opts.globalReplicationFactor = total


def getDevice(
    ipusPerReplica: int | None = None,
    connectionType: "DeviceConnectionType" = popart.DeviceConnectionType.Always,
) -> "DeviceInfo":
    """Return a device with the IPUs of this instance's replicas.

    In offline mode no device is attached. The stand-in runs all the same; Graphcore's
    PopART gets a device to compile for.

    Args:
        ipusPerReplica: The number of IPUs of a replica, which is checked; None for
            poprun's --ipus-per-replica.
        connectionType: The time when the device is attached.

    Raises:
        ValueError: The replicas of this job have a different number of IPUs.
        TypeError: An argument has the wrong type.
        DeviceError: The job has lost the device, or poprun has ended; or the job has no
            IPUs, because no option of poprun requested any.
    """
    if not isinstance(connectionType, popart.DeviceConnectionType):
        raise TypeError(
            f"getDevice got connectionType={connectionType!r}, but needs a value of "
            "popart.DeviceConnectionType, such as DeviceConnectionType.Always."
        )
    # It also checks ipusPerReplica, and attaches to nothing in offline mode.
    device_id = popdist.getDeviceId(ipusPerReplica)
    ipus = popdist.getNumLocalReplicas() * (
        ipusPerReplica or popdist.getNumIpusPerReplica()
    )
    manager = popart.DeviceManager()
    if os.environ.get(env.OFFLINE_MODE) == "1":
        if _IS_STAND_IN:
            return manager.createIpuModelDevice({"numIPUs": ipus})
        return manager.createOfflineIPUDevice({"numIPUs": str(ipus)})
    return manager.acquireDeviceById(device_id, connectionType=connectionType)
