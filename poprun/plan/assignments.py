"""The variables and bindings of each instance: Request and partition -> Plan. Pure."""

import json
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network

from popdist import environment as env
from popdist.environment import Instance
from poprun.host_specs import means_own_machine
from poprun.plan.topology import Topology
from poprun.plan.values import Assignment, Attempt, PartitionVariables, Plan, Request

# A rack's worth: the most IPUs that IPU-Links join.
LARGEST_ILD = 64


def make_plan(
    request: Request, attempt: Attempt, partition: PartitionVariables | None
) -> Plan:
    """Return the plan: for each instance its host, variables and binding.

    Args:
        partition: The partition that the job asks for or was granted; None for a job
            without IPUs.
    """
    plan = Plan(
        request=request,
        attempt=attempt,
        partition=partition,
        topology=_topology_on(request, partition),
        assignments=[],
    )
    pairs = zip(request.assignments, plan.topology.instances(), strict=True)
    return replace(plan, assignments=[_assign(plan, *each) for each in pairs])


def _assign(plan: Plan, assignment: Assignment, instance: Instance) -> Assignment:
    request, attempt, rank = plan.request, plan.attempt, assignment.rank
    printed = {
        **_instance_variables(plan, instance),
        **_partition_variables(plan, assignment),
        env.CONTRACT: str(env.CONTRACT_VERSION),
        env.JOB_ID: request.identity,
        env.OFFLINE_MODE: str(int(plan.partition is None)),
        env.RESTART_COUNT: str(attempt.number),
    }
    directory, threads = assignment.directory, assignment.threads
    variables = {
        **_launcher_variables(request, attempt, rank),
        **request.settings_variables,
        **({env.OMP_NUM_THREADS: str(threads)} if threads else {}),
        **({} if directory is None else {"PWD": directory}),
        **printed,
        env.CONTROL: attempt.control,
        **({env.PDB: "1"} if rank == request.stdin.debugged else {}),
        env.ARENA: f"{attempt.arena}-{plan.topology.host_of(rank)}",
        **_links_variable(request, attempt),
        **assignment.exports,
    }
    printed = {name: variables[name] for name in printed}
    return replace(assignment, printed=printed, variables=variables)


def _topology_on(request: Request, partition: PartitionVariables | None) -> Topology:
    """Return the topology of a job on its partition.

    V-IPU determines the number of ILDs, unless the user has, if the instances can be
    shared equally among so many.
    """
    topology, options = request.topology, request.partition_options
    num_ilds = None if partition is None else partition.num_ilds
    is_chosen = options is not None and options.num_ilds is not None
    if num_ilds is None or is_chosen or topology.num_instances % num_ilds:
        return topology
    return replace(topology, num_ilds=num_ilds)


def target_options(topology: Topology, given: Mapping[str, str]) -> dict[str, str]:
    """Return the likely target options of Poplar. The caller's own count more."""
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
    return json.dumps(options, separators=(",", ":"))


def _instance_variables(plan: Plan, instance: Instance) -> dict[str, str]:
    request, partition = plan.request, plan.partition
    variables = instance.encode()
    # The last two differ from instance to instance, as in the original.
    last_two = {
        name: variables.pop(name)
        for name in (env.REPLICA_INDEX_OFFSET, env.LOCAL_INSTANCE_INDEX)
    }
    if partition is not None and partition.node_device is not None:
        variables[env.NODE_DEVICE_ID] = str(partition.node_device)
    if request.cache_path is not None:
        variables[env.EXECUTABLE_CACHE_PATH] = request.cache_path
    return variables | last_two


def _partition_variables(plan: Plan, assignment: Assignment) -> dict[str, str]:
    request, partition = plan.request, plan.partition
    if partition is None:
        return {}
    rank, options = str(assignment.rank), partition.target_options
    server, address = partition.options.server, {}
    is_here = assignment.facts.is_own_host
    # A name of the own machine would name another one on another host.
    if server is not None and (is_here or not means_own_machine(server.host)):
        address = {env.VIPU_API_HOST: server.host, env.VIPU_API_PORT: str(server.port)}
    if options is None:
        options = target_options(plan.topology, request.target_options)
    return {
        **address,
        env.VIPU_API_PARTITION_ID: partition.name,
        env.VIPU_API_TIMEOUT: str(partition.options.timeout_s),
        **({env.VIPU_API_GCD_ID: rank} if partition.node_device is None else {}),
        env.IPUOF_LOG_LEVEL: "WARN",
        env.POPLAR_TARGET_OPTIONS: compact(options),
    }


def _links_variable(request: Request, attempt: Attempt) -> dict[str, str]:
    """Return where instances on several hosts reach instance 0 without MPI, by TCP.

    Nothing if the address of its host is unknown: popdist's error says so.
    """
    first = request.facts[0]
    if request.mpi.has_mpi or request.topology.num_hosts == 1 or not first.address:
        return {}
    # Sockets listen only in the network that the user chooses, or on the host's address
    # for the others.
    network = ip_network(request.subnet or first.address, strict=False)
    addresses = (first.address, *first.addresses)
    address = next(filter(lambda a: ip_address(a) in network, addresses), first.address)
    place = f"[{address}]" if ":" in address else address
    return {env.LINKS: f"tcp://{place}:{attempt.links_port}/{attempt.links_key}"}


def _launcher_variables(
    request: Request, attempt: Attempt, rank: int
) -> dict[str, str]:
    topology = request.topology
    local = str(topology.local_index(rank))
    size, local_size = str(topology.num_instances), str(topology.instances_per_host)
    first = request.facts[0].address or request.hosts[0].name
    counts = ",".join([local_size] * topology.num_hosts)
    return {
        **({env.INSTANCES_PER_HOST: counts} if topology.num_hosts > 1 else {}),
        env.RANK: str(rank),
        env.WORLD_SIZE: size,
        env.LOCAL_RANK: local,
        env.LOCAL_WORLD_SIZE: local_size,
        env.GROUP_RANK: str(topology.host_of(rank)),
        env.GROUP_WORLD_SIZE: str(topology.num_hosts),
        env.ROLE_NAME: "default",
        env.ROLE_RANK: str(rank),
        env.ROLE_WORLD_SIZE: size,
        env.TORCH_RUN_ID: request.identity,
        env.TORCH_RESTART_COUNT: str(attempt.number),
        env.TORCH_USE_AGENT_STORE: "False",
        env.MASTER_ADDR: first if topology.num_hosts > 1 else "127.0.0.1",
        env.MASTER_PORT: str(attempt.master_port),
        env.OMPI_RANK: str(rank),
        env.OMPI_SIZE: size,
        env.OMPI_LOCAL_RANK: local,
        env.OMPI_LOCAL_SIZE: local_size,
    }
