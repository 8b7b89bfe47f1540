"""The variables and bindings of each instance: topology and options -> Plan. Pure."""

from _json import encode_basestring_ascii as _quoted  # json takes 2 ms to import
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from popdist import environment as env
from popdist.environment import Instance
from poprun.plan.attempt import Attempt
from poprun.plan.hosts import HostSpec
from poprun.plan.placement import Binding
from poprun.plan.topology import Topology

# What the original forwards to its instances by name, if the caller has it.
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
# A rack's worth: the most IPUs that IPU-Links join.
LARGEST_ILD = 64


class PartitionVariables(NamedTuple):
    """The V-IPU partition of a job: as it asks for it, or as it was granted."""

    # "" for the inventory of this user on this machine, which is no server.
    server_host: str
    server_port: int
    server_timeout: int
    name: str
    # The parent device, if the partition is reconfigurable: it has no GCDs then.
    node_device: int | None = None
    # As V-IPU reported them; None for what is likely, before it is asked.
    target_options: Mapping[str, str] | None = None


class Request(NamedTuple):
    """What the variables of a job are made from, besides its topology."""

    identity: str
    hosts: Sequence[HostSpec]
    # The current directory on each host.
    cwds: Sequence[str]
    offline: bool
    attempt: Attempt
    partition: PartitionVariables | None = None
    cache_path: str | None = None
    target_options: Mapping[str, str] = MappingProxyType({})
    libmpi: str | None = None
    # What popdist is to say on stderr; None for what it says by itself.
    log_level: str | None = None
    # What --emulate-sdk is; None if it is not given.
    emulate_sdk: str | None = None
    # What --torch-backend is; None if it is not given.
    torch_backend: str | None = None
    # What the user asks for by -x, of all instances and of single ones.
    exports: Mapping[str, str] = MappingProxyType({})
    instance_exports: Mapping[int, Mapping[str, str]] = MappingProxyType({})
    # Where each instance runs; None, or nothing at all, for that of its host.
    directories: Sequence[str | None] = ()


class Assignment(NamedTuple):
    """One instance: where it runs, and its variables."""

    rank: int
    host: HostSpec
    instance: Instance
    binding: Binding
    # What stands on mpirun's command line, in the original's order.
    shown: Mapping[str, str]
    # All that is added to the caller's environment, `shown` included.
    variables: Mapping[str, str]
    # The absolute path of the directory that it runs in.
    cwd: str
    # The same if the user names it; None for the current directory of its host.
    directory: str | None = None


class Plan(NamedTuple):
    """A whole job, before anything is started."""

    topology: Topology
    # As the user wrote them, with users and slots.
    hosts: Sequence[HostSpec]
    assignments: Sequence[Assignment]


def make_plan(
    topology: Topology,
    request: Request,
    bindings: Sequence[Binding],
    threads: Sequence[int] | None,
) -> Plan:
    """Return the plan: for each instance its host, variables and binding.

    Args:
        bindings: One for each instance of the job, in rank order.
        threads: How many threads each of them should start; None if the caller has
            set a number.
    """
    assignments = []
    for rank, instance in enumerate(topology.instances()):
        host = topology.host_of(rank)
        shown = _shown(topology, request, rank, instance)
        directory = request.directories[rank] if request.directories else None
        variables = {
            **_for_other_launchers(topology, request, rank),
            **_threads(threads, rank),
            **_if_given(env.LOG_LEVEL, request.log_level),
            **_if_given(env.SDK, request.emulate_sdk),
            **_if_given(env.TORCH_BACKEND, request.torch_backend),
            **({} if directory is None else {"PWD": directory}),
            **shown,
            env.CONTROL: request.attempt.control,
            env.ARENA: f"{request.attempt.arena}-{host}",
            **request.exports,
            **request.instance_exports.get(rank, {}),
        }
        assignments.append(
            Assignment(
                rank=rank,
                host=request.hosts[host],
                instance=instance,
                binding=bindings[rank],
                shown={name: variables[name] for name in shown},
                variables=variables,
                cwd=request.cwds[host] if directory is None else directory,
                directory=directory,
            )
        )
    return Plan(topology=topology, hosts=request.hosts, assignments=assignments)


def exported(
    shown: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the variables in an instance's part of mpirun's argv; None: forwarded.

    What is forwarded stands where the original has it: behind what is the
    instance's, before Poplar's, and before what is ours alone.
    """
    forwards = dict.fromkeys(name for name in FORWARDED if name in environ)
    found: dict[str, str | None] = {}
    for name, value in shown.items():
        if name in (env.POPLAR_TARGET_OPTIONS, env.CONTRACT):
            found |= forwards
        found[name] = value
    return found


def target_options(topology: Topology, given: Mapping[str, str]) -> dict[str, str]:
    """Return what Poplar is likely to be told; what the caller gave counts more."""
    # A partition has a power of two of IPUs, and only whole racks are tori.
    size = 1 << (topology.num_ipus - 1).bit_length()
    share = min(max(1, size // topology.num_ilds), LARGEST_ILD)
    is_torus = share == LARGEST_ILD
    return {
        "ipuLinkDomainSize": str(share),
        "ipuLinkConfiguration": "slidingWindow" if is_torus else "default",
        "ipuLinkTopology": "torus" if is_torus else "mesh",
        "gatewayMode": "true",
        "instanceSize": str(topology.ipus_per_instance),
        **given,
    }


def compact(options: Mapping[str, str]) -> str:
    """Write target options as Poplar reads them."""
    pairs = (f"{_quoted(key)}:{_quoted(value)}" for key, value in options.items())
    return "{" + ",".join(pairs) + "}"


def _shown(
    topology: Topology, request: Request, rank: int, instance: Instance
) -> dict[str, str]:
    shown = instance.encode()
    partition = request.partition
    # Before the two that differ from instance to instance, as in the original.
    last_two = {
        name: shown.pop(name)
        for name in (env.REPLICA_INDEX_OFFSET, env.LOCAL_INSTANCE_INDEX)
    }
    if partition is not None and partition.node_device is not None:
        shown[env.NODE_DEVICE_ID] = str(partition.node_device)
    if request.cache_path is not None:
        shown[env.EXECUTABLE_CACHE_PATH] = request.cache_path
    shown |= last_two
    if partition is not None:
        shown |= _of_partition(topology, partition, request.target_options, rank)
    return shown | {
        env.CONTRACT: str(env.CONTRACT_VERSION),
        env.JOB_ID: request.identity,
        env.OFFLINE_MODE: str(int(request.offline)),
        env.RESTART_COUNT: str(request.attempt.number),
    }


def _of_partition(
    topology: Topology,
    partition: PartitionVariables,
    given: Mapping[str, str],
    rank: int,
) -> dict[str, str]:
    server = {
        env.VIPU_API_HOST: partition.server_host,
        env.VIPU_API_PORT: str(partition.server_port),
    }
    options = partition.target_options
    if options is None:
        options = target_options(topology, given)
    return {
        **(server if partition.server_host else {}),
        env.VIPU_API_PARTITION_ID: partition.name,
        env.VIPU_API_TIMEOUT: str(partition.server_timeout),
        **({env.VIPU_API_GCD_ID: str(rank)} if partition.node_device is None else {}),
        env.IPUOF_LOG_LEVEL: "WARN",
        env.POPLAR_TARGET_OPTIONS: compact(options),
    }


def _for_other_launchers(
    topology: Topology, request: Request, rank: int
) -> dict[str, str]:
    local = str(topology.local_index(rank))
    size, local_size = str(topology.num_instances), str(topology.instances_per_host)
    first = request.hosts[0].name
    variables = {
        env.RANK: str(rank),
        env.WORLD_SIZE: size,
        env.LOCAL_RANK: local,
        env.LOCAL_WORLD_SIZE: local_size,
        env.MASTER_ADDR: first if topology.num_hosts > 1 else "127.0.0.1",
        env.MASTER_PORT: str(request.attempt.master_port),
        env.OMPI_RANK: str(rank),
        env.OMPI_SIZE: size,
        env.OMPI_LOCAL_RANK: local,
        env.OMPI_LOCAL_SIZE: local_size,
    }
    if request.libmpi is not None:
        variables[env.MPI4PY_LIBMPI] = request.libmpi
    return variables


def _if_given(name: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {name: value}


def _threads(threads: Sequence[int] | None, rank: int) -> dict[str, str]:
    return {} if threads is None else {env.OMP_NUM_THREADS: str(threads[rank])}
