"""Clusters and agents in the database."""

from poprun.vipu.errors import InUseError, VipuRuleError
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables.names import check_new, get_named
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Block, Cluster
from poprun.vipu.requests import ClusterRequest
from poprun.vipu.rules.checks import check_agent, check_cluster, check_distinct
from poprun.vipu.rules.free_ipus import bits_of, free_blocks


def create_cluster(db: Transaction, request: ClusterRequest) -> Cluster:
    """Make a cluster, its agents if need be, and the allocation of its name."""
    machines = len(request.agents) or request.num_machines
    ilds = max(request.num_ilds, 1)
    if machines < 1 or machines % ilds:
        raise VipuRuleError(
            f"Cluster {request.name} would have {machines} agents in "
            f"{request.num_ilds} ILDs, but each ILD has the same number of agents, "
            "1 or more."
        )
    cluster = Cluster(
        name=request.name,
        num_ilds=request.num_ilds,
        ild_size=machines // ilds * IPUS_PER_MACHINE,
        topology=request.topology,
        gateway_topology=request.gateway_topology,
        automatic=request.automatic,
    )
    check_cluster(cluster)
    check_new(db, "clusters", cluster.name)
    check_new(db, "allocations", cluster.name)
    db.insert("clusters", cluster)
    ipus = bits_of([Block(0, cluster.size)])
    db.insert("allocations", cluster.name, cluster.name, column_of(ipus))
    if request.agents:
        _take_agents(db, request)
    else:
        _make_agents(db, cluster.name, machines)
    return cluster


def _take_agents(db: Transaction, request: ClusterRequest) -> None:
    check_distinct("Agent", request.agents)
    for machine, name in enumerate(request.agents):
        agent = get_agent(db, name)
        if agent.cluster is not None:
            raise InUseError(
                f"Agent {name} belongs to cluster {agent.cluster}. Remove that "
                "cluster, or leave the agent out."
            )
        cluster = request.name
        place = {"cluster": cluster, "machine": machine, "allocation": cluster}
        db.update("agents", place, name=name)


def _make_agents(db: Transaction, cluster: str, machines: int) -> None:
    (last,) = db.column(
        "SELECT coalesce(max(CAST(substr(name, 3) AS INTEGER)), -1) FROM agents "
        "WHERE name GLOB 'ag[0-9]*'",
    )
    for machine in range(machines):
        number = last + 1 + machine
        host = f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        agent = Agent(
            f"ag{number}", host, cluster=cluster, machine=machine, allocation=cluster
        )
        db.insert("agents", agent, True)


def list_clusters(db: Transaction) -> tuple[Cluster, ...]:
    return db.select(Cluster, "clusters ORDER BY rowid")


def get_cluster(db: Transaction, name: str) -> Cluster:
    return get_named(db, Cluster, "clusters", name)


def list_free_blocks(db: Transaction, cluster: str) -> tuple[Block, ...]:
    get_cluster(db, cluster)
    query = "SELECT free_ipus FROM allocations WHERE cluster = ?"
    columns = db.column(query, cluster)
    blocks = [block for column in columns for block in free_blocks(ipus_in(column))]
    return tuple(sorted(blocks))


def column_of(ipus: int) -> bytes:
    """Return the column of `allocations` that holds a set of IPUs."""
    return ipus.to_bytes((ipus.bit_length() + 7) // 8, "little")


def ipus_in(column: bytes) -> int:
    """Return the set of IPUs that a column of `allocations` holds."""
    return int.from_bytes(column, "little")


def remove_cluster(db: Transaction, name: str) -> None:
    get_cluster(db, name)
    check_empty(db, "cluster", name)
    for allocation in db.column("SELECT name FROM allocations WHERE cluster = ?", name):
        db.delete("allocation_users", allocation=allocation)
    db.delete("allocations", cluster=name)
    db.delete("agents", cluster=name, made_with_cluster=True)
    nowhere = dict.fromkeys(("cluster", "machine", "allocation"))
    db.update("agents", nowhere, cluster=name)
    db.delete("clusters", name=name)


def check_empty(db: Transaction, noun: str, name: str) -> None:
    """Check that a cluster or an allocation has no partitions.

    Raises:
        InUseError: It has some.
    """
    query = f"SELECT name FROM partitions WHERE {noun} = ? LIMIT 3"
    if partitions := db.column(query, name):
        raise InUseError(
            f"{noun.capitalize()} {name} cannot be removed while it has partitions, as "
            f"{', '.join(partitions)}. Remove them first."
        )


def create_agent(db: Transaction, name: str, host: str, port: int) -> Agent:
    agent = Agent(name=name, host=host, port=port)
    check_agent(agent)
    check_new(db, "agents", name)
    db.insert("agents", agent, False)
    return agent


def list_agents(db: Transaction, cluster: str | None) -> tuple[Agent, ...]:
    if cluster is None:
        return db.select(Agent, "agents ORDER BY rowid")
    get_cluster(db, cluster)
    return db.select(Agent, "agents WHERE cluster = ? ORDER BY machine", cluster)


def get_agent(db: Transaction, name: str) -> Agent:
    return get_named(db, Agent, "agents", name)


def remove_agent(db: Transaction, name: str) -> None:
    agent = get_agent(db, name)
    if agent.cluster is not None:
        raise InUseError(
            f"Agent {name} belongs to cluster {agent.cluster}. Remove the cluster "
            "first."
        )
    db.delete("agents", name=name)


def agents_in_trouble(
    db: Transaction, cluster: str, blocks: tuple[Block, ...]
) -> list[Agent]:
    """Return the agents below some IPUs that are not up."""
    agents = db.select(
        Agent, "agents WHERE cluster = ? AND status <> 'up' ORDER BY machine", cluster
    )
    ipus = bits_of(blocks)
    return [agent for agent in agents if ipus_of(agent) & ipus]


def ipus_of(agent: Agent) -> int:
    """Return the set of the IPUs of an agent that is in a cluster."""
    return bits_of([Block(agent.positions.start, IPUS_PER_MACHINE)])
