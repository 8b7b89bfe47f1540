"""Clusters and agents in the database."""

from _sqlite3 import Connection

from poprun.vipu.errors import InUseError, VipuRuleError
from poprun.vipu.inventory.tables.names import check_new, get_named
from poprun.vipu.inventory.tables.rows import (
    columns_of,
    insert,
    select,
    select_column,
)
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, AgentStatus, Block, Cluster
from poprun.vipu.requests import ClusterRequest
from poprun.vipu.rules.checks import check_agent, check_cluster, check_distinct
from poprun.vipu.rules.free_ipus import bits_of, free_blocks

_AGENTS = f"SELECT {columns_of(Agent)} FROM agents "


def create_cluster(db: Connection, request: ClusterRequest) -> Cluster:
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
    insert(db, "clusters", cluster)
    ipus = bits_of([Block(0, cluster.size)])
    insert(db, "allocations", cluster.name, cluster.name, column_of(ipus))
    if request.agents:
        _take_agents(db, request)
    else:
        _make_agents(db, cluster.name, machines)
    return cluster


def _take_agents(db: Connection, request: ClusterRequest) -> None:
    check_distinct("Agent", request.agents)
    for machine, name in enumerate(request.agents):
        agent = get_agent(db, name)
        if agent.cluster is not None:
            raise InUseError(
                f"Agent {name} belongs to cluster {agent.cluster}. Remove that "
                "cluster, or leave the agent out."
            )
        db.execute(
            "UPDATE agents SET cluster = ?, machine = ?, allocation = ? WHERE name = ?",
            (request.name, machine, request.name, name),
        )


def _make_agents(db: Connection, cluster: str, machines: int) -> None:
    (last,) = select_column(
        db,
        "SELECT coalesce(max(CAST(substr(name, 3) AS INTEGER)), -1) FROM agents "
        "WHERE name GLOB 'ag[0-9]*'",
    )
    for machine in range(machines):
        number = last + 1 + machine
        host = f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        agent = Agent(
            f"ag{number}", host, cluster=cluster, machine=machine, allocation=cluster
        )
        insert(db, "agents", agent, True)


def list_clusters(db: Connection) -> tuple[Cluster, ...]:
    query = f"SELECT {columns_of(Cluster)} FROM clusters ORDER BY rowid"
    return select(db, Cluster, query)


def get_cluster(db: Connection, name: str) -> Cluster:
    return get_named(db, Cluster, "clusters", name)


def list_free_blocks(db: Connection, cluster: str) -> tuple[Block, ...]:
    get_cluster(db, cluster)
    query = "SELECT free_ipus FROM allocations WHERE cluster = ?"
    columns = select_column(db, query, cluster)
    blocks = [block for column in columns for block in free_blocks(ipus_in(column))]
    return tuple(sorted(blocks))


def column_of(ipus: int) -> bytes:
    """Return the column of `allocations` that holds a set of IPUs."""
    return ipus.to_bytes((ipus.bit_length() + 7) // 8, "little")


def ipus_in(column: bytes) -> int:
    """Return the set of IPUs that a column of `allocations` holds."""
    return int.from_bytes(column, "little")


def remove_cluster(db: Connection, name: str) -> None:
    get_cluster(db, name)
    check_empty(db, "cluster", name)
    own = "(SELECT name FROM allocations WHERE cluster = ?)"
    for deleted in (
        f"allocation_users WHERE allocation IN {own}",
        "allocations WHERE cluster = ?",
        "agents WHERE cluster = ? AND made_with_cluster",
    ):
        db.execute(f"DELETE FROM {deleted}", (name,))
    db.execute(
        "UPDATE agents SET cluster = NULL, machine = NULL, allocation = NULL "
        "WHERE cluster = ?",
        (name,),
    )
    db.execute("DELETE FROM clusters WHERE name = ?", (name,))


def check_empty(db: Connection, noun: str, name: str) -> None:
    """Check that a cluster or an allocation has no partitions.

    Raises:
        InUseError: It has some.
    """
    query = f"SELECT name FROM partitions WHERE {noun} = ? LIMIT 3"
    partitions = select_column(db, query, name)
    if partitions:
        raise InUseError(
            f"{noun.capitalize()} {name} cannot be removed while it has partitions, as "
            f"{', '.join(partitions)}. Remove them first."
        )


def create_agent(db: Connection, name: str, host: str, port: int) -> Agent:
    agent = Agent(name=name, host=host, port=port)
    check_agent(agent)
    check_new(db, "agents", name)
    insert(db, "agents", agent, False)
    return agent


def list_agents(db: Connection, cluster: str | None) -> tuple[Agent, ...]:
    if cluster is None:
        return select(db, Agent, _AGENTS + "ORDER BY rowid")
    get_cluster(db, cluster)
    query = _AGENTS + "WHERE cluster = ? ORDER BY machine"
    return select(db, Agent, query, (cluster,))


def get_agent(db: Connection, name: str) -> Agent:
    return get_named(db, Agent, "agents", name)


def remove_agent(db: Connection, name: str) -> None:
    agent = get_agent(db, name)
    if agent.cluster is not None:
        raise InUseError(
            f"Agent {name} belongs to cluster {agent.cluster}. Remove the cluster "
            "first."
        )
    db.execute("DELETE FROM agents WHERE name = ?", (name,))


def set_agent_status(db: Connection, name: str, status: AgentStatus) -> Agent:
    get_agent(db, name)
    db.execute("UPDATE agents SET status = ? WHERE name = ?", (status, name))
    return get_agent(db, name)


def agents_in_trouble(
    db: Connection, cluster: str, blocks: tuple[Block, ...]
) -> list[Agent]:
    """Return the agents below some IPUs that are not up."""
    query = (
        f"{_AGENTS}WHERE cluster = ? AND status <> 'up' AND machine BETWEEN ? AND ? "
        "ORDER BY machine"
    )
    first = blocks[0].first // IPUS_PER_MACHINE
    last = (blocks[-1].end - 1) // IPUS_PER_MACHINE
    return [
        agent
        for agent in select(db, Agent, query, (cluster, first, last))
        if any(
            agent.positions.start < block.end and block.first < agent.positions.stop
            for block in blocks
        )
    ]
