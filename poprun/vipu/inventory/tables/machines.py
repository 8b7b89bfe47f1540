"""Clusters, agents and allocations in the database."""

from collections.abc import Sequence
from dataclasses import replace

from poprun.vipu.errors import AccessError, InUseError, VipuRuleError
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables.names import check_exists, check_new, get_named
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Allocation, Block, Cluster
from poprun.vipu.requests import ClusterRequest
from poprun.vipu.rules.checks import (
    check_agent,
    check_cluster,
    check_distinct,
    check_name,
    read_hosts,
)
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
        hosts=read_hosts(request.hosts),
    )
    check_cluster(cluster)
    check_new(db, "clusters", cluster.name)
    check_new(db, "allocations", cluster.name)
    db.insert("clusters", cluster)
    ipus = bits_of([Block(first=0, size=cluster.size)])
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
        "WHERE name GLOB 'ag[0-9]*'"
    )
    for machine in range(machines):
        number = last + 1 + machine
        host = f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        agent = Agent(
            name=f"ag{number}",
            host=host,
            cluster=cluster,
            machine=machine,
            allocation=cluster,
        )
        db.insert("agents", agent, True)


def set_cluster_hosts(db: Transaction, name: str, hosts: Sequence[str]) -> Cluster:
    """Name the host servers of a cluster."""
    cluster = replace(get_cluster(db, name), hosts=read_hosts(hosts))
    check_cluster(cluster)
    db.update("clusters", {"hosts": " ".join(cluster.hosts)}, name=name)
    return cluster


def list_clusters(db: Transaction) -> tuple[Cluster, ...]:
    return db.select(Cluster, "clusters ORDER BY rowid")


def get_cluster(db: Transaction, name: str) -> Cluster:
    return get_named(db, Cluster, "clusters", name)


def list_free_blocks(db: Transaction, cluster: str) -> tuple[Block, ...]:
    get_cluster(db, cluster)
    query = "SELECT free_ipus FROM allocations WHERE cluster = ?"
    columns = db.column(query, cluster)
    blocks = [block for column in columns for block in free_blocks(ipus_in(column))]
    return tuple(sorted(blocks, key=lambda block: block.first))


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
            f"{noun.capitalize()} {name} cannot be removed while it has partitions, "
            f"such as {', '.join(partitions)}. Remove them first."
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
    return bits_of([Block(first=agent.positions.start, size=IPUS_PER_MACHINE)])


def create_allocation(
    db: Transaction,
    name: str,
    cluster: str,
    agents: Sequence[str],
    users: Sequence[str],
) -> Allocation:
    """Take agents out of the allocation of their cluster's name, into a new one."""
    check_name("allocation", name)
    get_cluster(db, cluster)
    check_new(db, "allocations", name)
    if not agents:
        raise VipuRuleError(f"Allocation {name} would have no agents. Name some.")
    check_distinct("Agent", agents)
    db.insert("allocations", name, cluster, b"")
    for agent in [get_agent(db, agent) for agent in agents]:
        if agent.allocation != cluster:
            where = f"in allocation {agent.allocation}" if agent.allocation else "free"
            raise InUseError(
                f"Agent {agent.name} is {where}, not in cluster {cluster} without "
                "another allocation. Leave it out."
            )
        if ipus_of(agent) & ~get_free_ipus(db, cluster):
            raise InUseError(
                f"Agent {agent.name} has IPUs in use by a partition. Remove that "
                "first, or leave the agent out."
            )
        _move(db, agent, name)
    for user in users:
        check_exists(db, "users", user)
    add_users(db, name, users)
    return get_allocation(db, name)


def list_allocations(db: Transaction) -> tuple[Allocation, ...]:
    names = db.column("SELECT name FROM allocations ORDER BY rowid")
    return tuple(get_allocation(db, name) for name in names)


def get_allocation(db: Transaction, name: str) -> Allocation:
    check_exists(db, "allocations", name)
    (cluster,) = db.column("SELECT cluster FROM allocations WHERE name = ?", name)
    query = "SELECT name FROM agents WHERE allocation = ? ORDER BY machine"
    agents = db.column(query, name)
    return Allocation(
        name=name,
        cluster=cluster,
        agents=tuple(agents),
        users=tuple(get_users(db, name)),
    )


def remove_allocation(db: Transaction, name: str) -> None:
    allocation = get_allocation(db, name)
    cluster = allocation.cluster
    if name == cluster:
        raise InUseError(
            f"Allocation {name} belongs to cluster {name} itself. Remove the cluster "
            "instead."
        )
    check_empty(db, "allocation", name)
    for agent in allocation.agents:
        _move(db, get_agent(db, agent), cluster)
    db.delete("allocation_users", allocation=name)
    db.delete("allocations", name=name)


def check_use(db: Transaction, allocation: Allocation, user: str) -> None:
    """Check that a user may make partitions in an allocation.

    Raises:
        AccessError: It was made for other users, or the user for other allocations.
    """
    # What no allocation was made of in a cluster is for every user, if not limited.
    is_closed = allocation.users and allocation.name != allocation.cluster
    if user not in allocation.users and (is_closed or is_limited(db, user)):
        raise AccessError(
            f"User {user} may not use allocation {allocation.name}. Name another, or "
            "let the administrator add the user."
        )


def is_limited(db: Transaction, user: str) -> bool:
    """Return whether a user was made for certain allocations."""
    return any(db.column("SELECT is_limited FROM users WHERE name = ?", user))


def get_users(db: Transaction, allocation: str) -> list[str]:
    """Return the users that an allocation was made for; empty for every user."""
    query = "SELECT user FROM allocation_users WHERE allocation = ?"
    return db.column(query, allocation)


def add_users(db: Transaction, allocation: str, users: Sequence[str]) -> None:
    """Let users share an allocation."""
    for user in users:
        db.execute(
            "INSERT OR IGNORE INTO allocation_users VALUES (?, ?)", allocation, user
        )


def count_ipus(db: Transaction, allocation: str) -> int:
    """Return how many IPUs an allocation has."""
    query = "SELECT count(*) FROM agents WHERE allocation = ?"
    (agents,) = db.column(query, allocation)
    return int(agents) * IPUS_PER_MACHINE


def get_free_ipus(db: Transaction, allocation: str) -> int:
    """Return the set of the IPUs of an allocation that are in no partition."""
    query = "SELECT free_ipus FROM allocations WHERE name = ?"
    return ipus_in(*db.column(query, allocation))


def set_free_ipus(db: Transaction, allocation: str, ipus: int) -> None:
    """Say which IPUs of an allocation are in no partition."""
    db.update("allocations", {"free_ipus": column_of(ipus)}, name=allocation)


def _move(db: Transaction, agent: Agent, target: str) -> None:
    """Move an agent whose IPUs are free to another allocation of its cluster."""
    assert agent.allocation is not None
    ipus = ipus_of(agent)
    set_free_ipus(db, agent.allocation, get_free_ipus(db, agent.allocation) & ~ipus)
    set_free_ipus(db, target, get_free_ipus(db, target) | ipus)
    db.update("agents", {"allocation": target}, name=agent.name)
