"""Tell a program which replicas of the job are its own, and let them work together.

Importing it imports nothing heavy: what needs numpy and the engine comes at first use.
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
    from popdist.groups.replica_group import replica_group

__all__ = [
    "ArenaError",
    "BackendError",
    "CollectiveAbortedError",
    "CollectiveTimeoutError",
    "GroupUnusableError",
    "LauncherError",
    "MismatchError",
    "MissingVariableError",
    "NotUniformError",
    "PeerLostError",
    "PopdistError",
    "SettingError",
    "UnreadableVariableError",
    "checkNumIpusPerReplica",
    "collectives",
    "defaultCommunicatorId",
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
    "isBackendInitialized",
    "isPopdistEnvSet",
    "isUniformReplicasPerInstance",
    "registerBackend",
    "registerCommunicator",
    "registerDefaultBackend",
    "replica_group",
]


# Any, because each name has a type of its own, which type checkers see above.
def __getattr__(name: str) -> Any:
    """Import what is heavy, when it is first asked for."""
    if name == "collectives":
        return import_module("popdist.collectives")
    if name == "replica_group":
        return import_module("popdist.groups.replica_group").replica_group
    raise AttributeError(f"module 'popdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name what is heavy as well."""
    return sorted({*globals(), *__all__})
