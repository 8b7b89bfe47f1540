"""The replicas of this instance, and collectives among all replicas of the job.

Importing it imports next to nothing, because poprun needs no more than the contract:
PopDist's functions, numpy and the engine are imported at their first use.
"""

from importlib import import_module

from popdist.errors import (
    ArenaError,
    BackendError,
    CollectiveAbortedError,
    CollectiveTimeoutError,
    ElasticError,
    GroupUnusableError,
    LauncherError,
    LeftJobError,
    MembersChangedError,
    MismatchError,
    MissingVariableError,
    NotUniformError,
    PeerLostError,
    PopdistError,
    SettingError,
    UnreadableVariableError,
)

# Importing typing takes longer than all else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from popdist import collectives, elastic
    from popdist.engine.group import Group
    from popdist.engine.handle import Handle
    from popdist.groups.arrays import empty, empty_like, rows, zeros
    from popdist.groups.instance_group import instance_group
    from popdist.groups.partitioned import ReplicaGroups
    from popdist.groups.replica_group import replica_group
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
    from popdist.spans import trace

# Equal to poprun's version: both are installed together.
__version__ = "0.1.0"

__all__ = [
    "ArenaError",
    "BackendError",
    "CollectiveAbortedError",
    "CollectiveTimeoutError",
    "ElasticError",
    "Group",
    "GroupUnusableError",
    "Handle",
    "LauncherError",
    "LeftJobError",
    "MembersChangedError",
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
    "elastic",
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
    "trace",
    "zeros",
]

# Names that need numpy and the engine, and their modules.
_HEAVY = {
    "Group": "popdist.engine.group",
    "Handle": "popdist.engine.handle",
    "ReplicaGroups": "popdist.groups.partitioned",
    "empty": "popdist.groups.arrays",
    "empty_like": "popdist.groups.arrays",
    "instance_group": "popdist.groups.instance_group",
    "replica_group": "popdist.groups.replica_group",
    "rows": "popdist.groups.arrays",
    "trace": "popdist.spans",
    "zeros": "popdist.groups.arrays",
}


# Any, because each name has a different type, which type checkers see above.
def __getattr__(name: str) -> "Any":
    """Import a name at its first use."""
    if name in ("collectives", "elastic", "popdist_core"):
        return import_module(f"popdist.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'popdist' has no attribute {name!r}")
    value = getattr(import_module(_HEAVY.get(name, "popdist.popdist_core")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all public names, including names that are not imported yet."""
    return sorted({*globals(), *__all__})
