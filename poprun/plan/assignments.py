"""The variables and bindings of each instance: Request and partition -> Plan. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network

from popdist import environment as env
from popdist.environment import Instance
from poprun.host_specs import means_own_machine
from poprun.plan.host_facts import HostFacts
from poprun.plan.topology import Topology
from poprun.plan.values import Assignment, Attempt, PartitionVariables, Plan, Request
from poprun.vipu.launch.values import compact_json

# Where the instances of one host, or of a job on one host, do not have them.
OPTIONAL = (env.INSTANCES_PER_HOST, env.LINKS, env.ELASTIC_JOINS)
# A rack's worth: the most IPUs that IPU-Links join.
LARGEST_ILD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where an instance stands among the members of its job.

    Attributes:
        rank: Its number.
        host: The number of its host among those with members.
        host_sizes: How many members each host has.
        first: The facts of the host of rank 0, and the name of that host.
    """

    rank: int
    host: int
    host_sizes: Sequence[int]
    first: HostFacts
    first_name: str

    @property
    def local_index(self) -> int:
        return self.rank - sum(self.host_sizes[: self.host])

    @property
    def size(self) -> int:
        return sum(self.host_sizes)


def _places(plan: Plan, members: Sequence[int]) -> list[_Place]:
    """Return the places of instances, which are in their order."""
    hosts = [plan.topology.host_of(member) for member in members]
    sizes = Counter(hosts)
    numbers = {host: number for number, host in enumerate(sizes)}
    return [
        _Place(
            rank=rank,
            host=numbers[host],
            host_sizes=list(sizes.values()),
            first=plan.request.facts[hosts[0]],
            first_name=plan.request.hosts[hosts[0]].name,
        )
        for rank, host in enumerate(hosts)
    ]


def generation_variables(
    plan: Plan, members: Sequence[int], attempt: Attempt
) -> list[dict[str, str | None]]:
    """Return the variables of an elastic job's members that depend on each other.

    Each instance keeps its number of replicas, and the total follows.

    Args:
        members: The instances of the plan that are there, in their order.
        attempt: The attempt with other secrets and ports: see Attempt.

    Returns:
        The variables of each member; None for one that it does not have.
    """
    local = plan.topology.local_replicas
    variables: list[dict[str, str | None]] = []
    for member, place in zip(members, _places(plan, members), strict=True):
        instance = Instance(
            num_total_replicas=local * place.size,
            num_ipus_per_replica=plan.topology.ipus_per_replica,
            num_local_replicas=local,
            replica_index_offset=local * place.rank,
            local_instance_index=place.local_index,
        )
        own = dict.fromkeys(OPTIONAL) | {
            **instance.encode(),
            **_launcher_variables(plan.request, attempt, place),
            **_meeting_variables(plan.request, attempt, place),
        }
        # The user's own values count more.
        exports = plan.assignments[member].exports
        variables.append({n: value for n, value in own.items() if n not in exports})
    return variables


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
    places = _places(plan, range(plan.topology.num_instances))
    each = zip(request.assignments, plan.topology.instances(), places, strict=True)
    return replace(plan, assignments=[_assign(plan, *values) for values in each])


def _assign(
    plan: Plan, assignment: Assignment, instance: Instance, place: _Place
) -> Assignment:
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
        **_launcher_variables(request, attempt, place),
        **request.settings_variables,
        **({env.OMP_NUM_THREADS: str(threads)} if threads else {}),
        **({} if directory is None else {"PWD": directory}),
        **printed,
        env.CONTROL: attempt.control,
        **({env.PDB: "1"} if rank == request.stdin.debugged else {}),
        **_meeting_variables(request, attempt, place),
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
        env.POPLAR_TARGET_OPTIONS: compact_json(options),
    }


def _meeting_variables(
    request: Request, attempt: Attempt, place: _Place
) -> dict[str, str]:
    """Return how the members find each other: on one host, and over hosts by TCP.

    The second is left out if the address of the first host is unknown: popdist's error
    says so.
    """
    arena = {env.ARENA: f"{attempt.arena}-{place.host}"}
    first = place.first
    if request.mpi.has_mpi or len(place.host_sizes) == 1 or not first.address:
        return arena
    # Sockets listen only in the network that the user chooses, or on the host's address
    # for the others.
    network = ip_network(request.subnet or first.address, strict=False)
    addresses = (first.address, *first.addresses)
    address = next(filter(lambda a: ip_address(a) in network, addresses), first.address)
    host = f"[{address}]" if ":" in address else address
    links = f"tcp://{host}:{attempt.links_port}/{attempt.links_key}"
    return {**arena, env.LINKS: links}


def _launcher_variables(
    request: Request, attempt: Attempt, place: _Place
) -> dict[str, str]:
    rank, local, size = str(place.rank), str(place.local_index), str(place.size)
    sizes = place.host_sizes
    local_size, has_several = str(sizes[place.host]), len(sizes) > 1
    counts = {env.INSTANCES_PER_HOST: ",".join(map(str, sizes))}
    first = place.first.address or place.first_name
    return {
        **(counts if has_several else {}),
        env.RANK: rank,
        env.WORLD_SIZE: size,
        env.LOCAL_RANK: local,
        env.LOCAL_WORLD_SIZE: local_size,
        env.GROUP_RANK: str(place.host),
        env.GROUP_WORLD_SIZE: str(len(sizes)),
        env.ROLE_NAME: "default",
        env.ROLE_RANK: rank,
        env.ROLE_WORLD_SIZE: size,
        env.TORCH_RUN_ID: request.identity,
        env.TORCH_RESTART_COUNT: str(attempt.num_failures),
        env.TORCH_USE_AGENT_STORE: "False",
        env.MASTER_ADDR: first if has_several else "127.0.0.1",
        env.MASTER_PORT: str(attempt.master_port),
        env.OMPI_RANK: rank,
        env.OMPI_SIZE: size,
        env.OMPI_LOCAL_RANK: local,
        env.OMPI_LOCAL_SIZE: local_size,
    }
