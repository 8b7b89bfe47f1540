"""PopART's session options and device for the replicas of this instance.

They work with Graphcore's PopART where that is installed, and with the stand-in.
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
        "popdist.popart needs popart, which is not installed. Its stand-in is "
        "importable below poprun; elsewhere, `python -m popdist.sdk enable` makes it "
        "so for this environment, and `python -m popdist.sdk PROGRAM` for one program.",
        name="popart",
    ) from None

__all__ = ["configureSessionOptions", "getDevice"]

# The stand-in has only enumerations where onnx or torch are missing: this says so.
_SESSION_OPTIONS = popart.SessionOptions
# The stand-in computes without devices, so it does so in offline mode too.
_IS_STAND_IN = getattr(popart, "__stand_in__", False)


def configureSessionOptions(opts: "SessionOptions") -> None:
    """Set the options of replicated graphs to what poprun has decided.

    Without poprun they are those of one instance with one replica.

    Raises:
        TypeError: `opts` are no session options.
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

    In offline mode none is attached: the stand-in runs all the same, and Graphcore's
    PopART gets a device to compile for.

    Args:
        ipusPerReplica: How many IPUs a replica has, which is checked; None for as many
            as poprun's --ipus-per-replica.
        connectionType: When the device is attached.

    Raises:
        ValueError: The replicas of this job have another number of IPUs.
        TypeError: An argument has another type.
        DeviceError: The job does not hold the device any more, or poprun has ended; or
            the job has no IPUs, because no option of poprun has asked for any.
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
