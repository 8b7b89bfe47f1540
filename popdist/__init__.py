"""Tell a program which replicas of the job are its own. Imports nothing heavy."""

from popdist.errors import (
    MissingVariableError,
    NotUniformError,
    PopdistError,
    UnreadableVariableError,
)
from popdist.popdist_core import (
    checkNumIpusPerReplica,
    getDeviceId,
    getInstanceIndex,
    getLocalInstanceIndex,
    getNumInstances,
    getNumIpusPerReplica,
    getNumLocalReplicas,
    getNumTotalReplicas,
    getReplicaIndexOffset,
    isPopdistEnvSet,
    isUniformReplicasPerInstance,
)

__all__ = [
    "MissingVariableError",
    "NotUniformError",
    "PopdistError",
    "UnreadableVariableError",
    "checkNumIpusPerReplica",
    "getDeviceId",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "isPopdistEnvSet",
    "isUniformReplicasPerInstance",
]
