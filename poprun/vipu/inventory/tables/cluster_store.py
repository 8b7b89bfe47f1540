"""Clusters and agents in the database."""

from typing import Any

from poprun.vipu.errors import InUseError, NameTakenError, VipuRuleError
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.tables.free_blocks import StoredFreeBlocks
from poprun.vipu.inventory.tables.names import exists, refuse_unknown
from poprun.vipu.model import (
    IPUS_PER_MACHINE,
    Agent,
    AgentStatus,
    Block,
    Cluster,
    ClusterTopology,
    LinkTopology,
)
from poprun.vipu.requests import ClusterRequest
from poprun.vipu.rules import buddy
from poprun.vipu.rules.checks import check_agent, check_cluster, check_distinct

_AGENT = "SELECT name, host, port, status, cluster, machine, allocation FROM agents "
_CLUSTER = (
    "SELECT name, num_ilds, ild_size, topology, gateway_topology, automatic "
    "FROM clusters "
)


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
    for what in ("clusters", "allocations"):
        if exists(db, what, cluster.name):
            raise NameTakenError(
                f"There is {what[:-1]} {cluster.name} already. Choose another name."
            )
    db.execute(
        "INSERT INTO clusters VALUES (?, ?, ?, ?, ?, ?)",
        (
            cluster.name,
            cluster.num_ilds,
            cluster.ild_size,
            cluster.topology,
            cluster.gateway_topology,
            cluster.automatic,
        ),
    )
    db.execute("INSERT INTO allocations VALUES (?, ?)", (cluster.name, cluster.name))
    if request.agents:
        _take_agents(db, request)
    else:
        _make_agents(db, cluster.name, machines)
    free = StoredFreeBlocks(db, cluster.name)
    for block in buddy.aligned_blocks(0, cluster.size):
        free.add(block)
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
    (last,) = db.execute(
        "SELECT coalesce(max(CAST(substr(name, 3) AS INTEGER)), -1) FROM agents "
        "WHERE name GLOB 'ag[0-9]*'"
    ).fetchone()
    db.executemany(
        "INSERT INTO agents VALUES (?, ?, 8080, 'up', ?, ?, ?, 1)",
        (
            (
                f"ag{number}",
                f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
                cluster,
                machine,
                cluster,
            )
            for machine, number in enumerate(range(last + 1, last + 1 + machines))
        ),
    )


def list_clusters(db: Connection) -> tuple[Cluster, ...]:
    rows = db.execute(_CLUSTER + "ORDER BY rowid").fetchall()
    return tuple(map(_cluster, rows))


def get_cluster(db: Connection, name: str) -> Cluster:
    row = db.execute(_CLUSTER + "WHERE name = ?", (name,)).fetchone()
    if row is None:
        refuse_unknown(db, "clusters", name)
    return _cluster(row)


def list_free_blocks(db: Connection, cluster: str) -> tuple[Block, ...]:
    get_cluster(db, cluster)
    rows = db.execute(
        "SELECT f.first, f.size FROM free_blocks f JOIN allocations a "
        "ON a.name = f.allocation WHERE a.cluster = ? ORDER BY f.first",
        (cluster,),
    ).fetchall()
    return tuple(Block(*row) for row in rows)


def remove_cluster(db: Connection, name: str) -> None:
    get_cluster(db, name)
    used = db.execute(
        "SELECT name FROM partitions WHERE cluster = ? LIMIT 3", (name,)
    ).fetchall()
    if used:
        raise InUseError(
            f"Cluster {name} cannot be removed while it has partitions, as "
            f"{', '.join(row[0] for row in used)}. Remove them first."
        )
    pools = "(SELECT name FROM allocations WHERE cluster = ?)"
    db.execute(f"DELETE FROM free_blocks WHERE allocation IN {pools}", (name,))
    db.execute(f"DELETE FROM allocation_users WHERE allocation IN {pools}", (name,))
    db.execute("DELETE FROM allocations WHERE cluster = ?", (name,))
    db.execute("DELETE FROM agents WHERE cluster = ? AND made_with_cluster", (name,))
    db.execute(
        "UPDATE agents SET cluster = NULL, machine = NULL, allocation = NULL "
        "WHERE cluster = ?",
        (name,),
    )
    db.execute("DELETE FROM clusters WHERE name = ?", (name,))


def create_agent(db: Connection, name: str, host: str, port: int) -> Agent:
    agent = Agent(name=name, host=host, port=port)
    check_agent(agent)
    if exists(db, "agents", agent.name):
        raise NameTakenError(
            f"There is agent {agent.name} already. Choose another name."
        )
    db.execute(
        "INSERT INTO agents VALUES (?, ?, ?, ?, NULL, NULL, NULL, 0)",
        (agent.name, agent.host, agent.port, agent.status),
    )
    return agent


def list_agents(db: Connection, cluster: str | None) -> tuple[Agent, ...]:
    if cluster is None:
        rows = db.execute(_AGENT + "ORDER BY rowid").fetchall()
    else:
        get_cluster(db, cluster)
        rows = db.execute(
            _AGENT + "WHERE cluster = ? ORDER BY machine", (cluster,)
        ).fetchall()
    return tuple(map(_agent, rows))


def get_agent(db: Connection, name: str) -> Agent:
    row = db.execute(_AGENT + "WHERE name = ?", (name,)).fetchone()
    if row is None:
        refuse_unknown(db, "agents", name)
    return _agent(row)


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
    rows = db.execute(
        _AGENT + "WHERE cluster = ? AND status <> 'up' AND machine BETWEEN ? AND ? "
        "ORDER BY machine",
        (
            cluster,
            blocks[0].first // IPUS_PER_MACHINE,
            (blocks[-1].end - 1) // IPUS_PER_MACHINE,
        ),
    ).fetchall()
    return [
        agent
        for agent in map(_agent, rows)
        if any(
            agent.positions.start < block.end and block.first < agent.positions.stop
            for block in blocks
        )
    ]


def _cluster(row: tuple[Any, ...]) -> Cluster:
    return Cluster(
        name=row[0],
        num_ilds=int(row[1]),
        ild_size=int(row[2]),
        topology=LinkTopology(row[3]),
        gateway_topology=ClusterTopology(row[4]),
        automatic=bool(row[5]),
    )


def _agent(row: tuple[Any, ...]) -> Agent:
    return Agent(
        name=row[0],
        host=row[1],
        port=int(row[2]),
        status=AgentStatus(row[3]),
        cluster=row[4],
        machine=None if row[5] is None else int(row[5]),
        allocation=row[6],
    )
