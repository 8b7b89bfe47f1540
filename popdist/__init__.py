"""The replicas of this instance, and collectives among all replicas of the job.

Importing it imports nothing heavy: numpy and the engine are imported at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from popdist.errors import (
    ArenaError,
    BackendError,
    CollectiveAbortedError,
    CollectiveTimeoutError,
    GroupUnusableError,
    LauncherError,
    MismatchError,
    MissingVariableError,
    NotUniformError,
    PeerLostError,
    PopdistError,
    SettingError,
    UnreadableVariableError,
)
from popdist.popdist_core import (
    checkNumIpusPerReplica,
    defaultCommunicatorId,
    execute_on_instances,
    finalizeBackend,
    getDeviceId,
    getInstanceIndex,
    getLocalInstanceIndex,
    getNumInstances,
    getNumIpusPerReplica,
    getNumLocalReplicas,
    getNumTotalReplicas,
    getReplicaIndexOffset,
    init,
    initializeBackend,
    isBackendInitialized,
    isPopdistEnvSet,
    isUniformReplicasPerInstance,
    registerBackend,
    registerCommunicator,
    registerDefaultBackend,
)

if TYPE_CHECKING:
    from popdist import collectives
    from popdist.engine.group import Group
    from popdist.engine.handle import Handle
    from popdist.groups.arrays import empty, empty_like, rows, zeros
    from popdist.groups.instance_group import instance_group
    from popdist.groups.partitioned import ReplicaGroups
    from popdist.groups.replica_group import replica_group

# That of poprun, which comes with it.
__version__ = "0.1.0"

__all__ = [
    "ArenaError",
    "BackendError",
    "CollectiveAbortedError",
    "CollectiveTimeoutError",
    "Group",
    "GroupUnusableError",
    "Handle",
    "LauncherError",
    "MismatchError",
    "MissingVariableError",
    "NotUniformError",
    "PeerLostError",
    "PopdistError",
    "ReplicaGroups",
    "SettingError",
    "UnreadableVariableError",
    "checkNumIpusPerReplica",
    "collectives",
    "defaultCommunicatorId",
    "empty",
    "empty_like",
    "execute_on_instances",
    "finalizeBackend",
    "getDeviceId",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "initializeBackend",
    "instance_group",
    "isBackendInitialized",
    "isPopdistEnvSet",
    "isUniformReplicasPerInstance",
    "registerBackend",
    "registerCommunicator",
    "registerDefaultBackend",
    "replica_group",
    "rows",
    "zeros",
]

# What needs numpy and the engine, and the modules that have it.
_HEAVY = {
    "Group": "popdist.engine.group",
    "Handle": "popdist.engine.handle",
    "ReplicaGroups": "popdist.groups.partitioned",
    "empty": "popdist.groups.arrays",
    "empty_like": "popdist.groups.arrays",
    "instance_group": "popdist.groups.instance_group",
    "replica_group": "popdist.groups.replica_group",
    "rows": "popdist.groups.arrays",
    "zeros": "popdist.groups.arrays",
}


# Any, because each name has a type of its own, which type checkers see above.
def __getattr__(name: str) -> Any:
    """Import what needs numpy and the engine at its first use."""
    if name == "collectives":
        return import_module("popdist.collectives")
    if name in _HEAVY:
        return getattr(import_module(_HEAVY[name]), name)
    raise AttributeError(f"module 'popdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all public names, also of what is not imported yet."""
    return sorted({*globals(), *__all__})
