"""PopDist's functions: the place of this instance and its replicas in the job.

They keep PopDist's names, and read the environment at each call. A process that
poprun did not start is the only instance of a job with one replica, so the same
program runs with and without poprun; under a bare mpirun, each process is an
instance with one replica. If only some of poprun's variables are set, each getter
reads its own, and returns PopDist's default if that is not set. getDeviceId, the
collectives and init() need all of the variables: they raise MissingVariableError if
one is not set, and UnreadableVariableError if they contradict each other.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from operator import index
from typing import TYPE_CHECKING, Any

from popdist import device, environment
from popdist.environment import NODE_DEVICE_ID, Instance
from popdist.errors import NotUniformError, UnreadableVariableError
from popdist.job import instance_of, topology_number
from popdist.launchers import is_launched

if TYPE_CHECKING:
    from popdist.backend import (
        defaultCommunicatorId,
        finalizeBackend,
        init,
        initializeBackend,
        isBackendInitialized,
        registerBackend,
        registerCommunicator,
        registerDefaultBackend,
    )
    from popdist.communicators import execute_on_instances

__all__ = [
    "checkNumIpusPerReplica",
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
]


def __getattr__(name: str) -> Any:
    # Most programs only use the getters, which need none of these modules.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "communicators" if name == "execute_on_instances" else "backend"
    return getattr(import_module(f"popdist.{module}"), name)


def isPopdistEnvSet() -> bool:
    """Return whether poprun started this process.

    It does not check the other variables, and never raises. You need not call it before
    a getter: all getters return a value without poprun, too.
    """
    return environment.is_set(os.environ)


def getNumTotalReplicas() -> int:
    """Return the number of replicas of the whole job; 1 without poprun.

    A mean over the job divides by this number, not by the number of instances.
    """
    return _number(environment.NUM_TOTAL_REPLICAS)


def getNumLocalReplicas() -> int:
    """Return the number of replicas of this instance; 1 without poprun."""
    return _number(environment.NUM_LOCAL_REPLICAS)


def getReplicaIndexOffset() -> int:
    """Return the job-wide index of this instance's first replica; 0 without poprun.

    The instance owns the replicas from this index up to, but not including, this index
    plus getNumLocalReplicas(). They are its share of a data set that is split by
    replica.
    """
    return _number(environment.REPLICA_INDEX_OFFSET)


def getNumIpusPerReplica() -> int:
    """Return the number of IPUs that each replica spans; 1 without poprun."""
    return _number(environment.NUM_IPUS_PER_REPLICA)


def getInstanceIndex() -> int:
    """Return the index of this instance in the job; 0 without poprun.

    It counts over all hosts; getLocalInstanceIndex() returns the index on one host. It
    is not the index of a replica, because an instance may own several replicas.

    Raises:
        NotUniformError: The instances own different numbers of replicas.
    """
    _require_uniform("getInstanceIndex")
    return getReplicaIndexOffset() // getNumLocalReplicas()


def getNumInstances() -> int:
    """Return the number of instances of the job, on all hosts; 1 without poprun.

    Raises:
        NotUniformError: The instances own different numbers of replicas.
    """
    _require_uniform("getNumInstances")
    return getNumTotalReplicas() // getNumLocalReplicas()


def getLocalInstanceIndex() -> int:
    """Return the index of this instance on its host; 0 without poprun.

    Every host has an instance 0. Use it for work that must be done once on each host,
    such as a download. For work that must be done once in a job, use the instance with
    getInstanceIndex() 0.
    """
    return _number(environment.LOCAL_INSTANCE_INDEX)


def isUniformReplicasPerInstance() -> bool:
    """Return whether all instances own the same number of replicas.

    True without poprun. If it is False, getInstanceIndex() and getNumInstances() raise
    NotUniformError.
    """
    return bool(_number(environment.UNIFORM_REPLICAS_PER_INSTANCE))


def checkNumIpusPerReplica(expected: int) -> bool:
    """Return whether the replicas of this job span `expected` IPUs each.

    If they do not, it returns False and raises nothing, so check the result. Without
    poprun a replica spans one IPU, so only 1 gives True.
    """
    return getNumIpusPerReplica() == expected


def getDeviceId(
    ipus_per_replica: int | None = None, *, ipusPerReplica: int | None = None
) -> int:
    """Return the id of the device that holds all of this instance's IPUs.

    In a job with IPUs it attaches this process to the device until the process ends.
    The device belongs to the instance: its child processes can call this too, and get
    the same device.

    Each instance of a job gets a different device; without poprun the id is 0. Devices
    are numbered as in a reconfigurable partition: first the single IPUs, then the
    pairs, then the fours, and so on. If poprun has set a parent device, this is the
    instance's equal part of it. Otherwise the job is assumed to fill a whole partition.
    If the job does not fit one, because its number of IPUs is not a power of two or its
    instances differ, the id is the number of the device's first IPU.

    Args:
        ipus_per_replica: The expected value of getNumIpusPerReplica(), which is
            checked. None or 0 for no check.
        ipusPerReplica: The same, under its later name.

    Raises:
        TypeError: Both names are given, and differ.
        ValueError: The replicas of this job span a different number of IPUs.
        DeviceError: The job has lost the device, or poprun has ended; or the job has no
            IPUs, because no option of poprun requested any.
    """
    _check_ipus_per_replica(ipus_per_replica, ipusPerReplica)
    device.check_has_ipus(os.environ)
    if device.is_emulated(os.environ):
        return device.attach(os.environ, _uniform_instance("getDeviceId"))
    parent = os.environ.get(NODE_DEVICE_ID)
    if parent is None or not is_launched(os.environ):
        return _offline_device(instance_of(os.environ))
    return _part_of(parent, _uniform_instance("getDeviceId"))


def _number(variable: str) -> int:
    return topology_number(_own_environ(), variable)


def _own_environ() -> Mapping[str, str]:
    """Return the environment, once it has the place of this process in the job."""
    if os.environ.get(environment.ELASTIC_JOINS):
        # Not above, as in __getattr__().
        from popdist.session import STATE

        # The first use lets an instance that poprun has added join the job.
        STATE.job  # noqa: B018
    return os.environ


def _require_uniform(function: str) -> None:
    if not isUniformReplicasPerInstance():
        raise NotUniformError(function)


def _uniform_instance(function: str) -> Instance:
    _require_uniform(function)
    return instance_of(_own_environ())


def _check_ipus_per_replica(earlier: int | None, later: int | None) -> None:
    if earlier is not None and later is not None and earlier != later:
        raise TypeError(
            f"getDeviceId got ipus_per_replica={earlier} and ipusPerReplica={later}, "
            "which are two names of one argument. Give one of them."
        )
    ipus = earlier if earlier is not None else later
    if not ipus:
        return
    try:
        ipus = int(index(ipus))
    except TypeError:
        raise TypeError(
            f"getDeviceId got {ipus!r} IPUs per replica, but needs an int."
        ) from None
    if ipus < 0:
        raise ValueError(
            f"getDeviceId got {ipus} IPUs per replica, but there must be 1 or more."
        )
    if is_launched(os.environ) and not checkNumIpusPerReplica(ipus):
        raise ValueError(
            f"getDeviceId was asked for {ipus} IPUs per replica, but this job has "
            f"{getNumIpusPerReplica()}. Start it with "
            f"poprun --ipus-per-replica {ipus}, or ask for "
            f"{getNumIpusPerReplica()}."
        )


def _offline_device(instance: Instance) -> int:
    ipus = instance.num_total_replicas * instance.num_ipus_per_replica
    if not instance.uniform or ipus.bit_count() != 1:
        return instance.replica_index_offset * instance.num_ipus_per_replica
    share = ipus // instance.num_instances
    return _first_device(ipus, share) + instance.index


def _part_of(parent: str, instance: Instance) -> int:
    ipus = instance.num_total_replicas * instance.num_ipus_per_replica
    rule = f"the id of a device with {ipus} IPUs"
    if not (parent.isascii() and parent.isdigit()) or ipus.bit_count() != 1:
        raise UnreadableVariableError(NODE_DEVICE_ID, parent, rule)
    device = int(parent)
    # Devices of one size have higher ids in a larger partition, so the id tells how
    # large the partition is; of single IPUs, that it is large enough.
    partition = ipus
    while device >= _first_device(partition, 2 * ipus):
        partition *= 2
    position = device - _first_device(partition, ipus)
    if position < 0:
        raise UnreadableVariableError(NODE_DEVICE_ID, parent, rule)
    count = instance.num_instances
    first = _first_device(partition, ipus // count)
    return first + position * count + instance.index


def _first_device(partition: int, size: int) -> int:
    """Return the id of the first device with `size` IPUs, both powers of two."""
    return 2 * partition - 2 * partition // size
