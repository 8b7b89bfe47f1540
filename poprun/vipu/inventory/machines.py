"""Clusters, agents and allocations, and which of their IPUs are free."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from poprun.vipu.errors import InUseError, VipuRuleError
from poprun.vipu.inventory.transaction import Transaction
from poprun.vipu.inventory.users import add_users, users_of
from poprun.vipu.model import (
    IPUS_PER_MACHINE,
    Agent,
    Allocation,
    Block,
    Cluster,
    ClusterRequest,
)
from poprun.vipu.rules.checks import (
    check_agent,
    check_cluster,
    check_distinct,
    check_name,
    read_hosts,
)
from poprun.vipu.rules.free_ipus import bits_of, free_blocks


def create_cluster(db: Transaction, request: ClusterRequest) -> Cluster:
    """Make a cluster of agents, new ones if none are named.

    Raises:
        NameTakenError: There is a cluster or an allocation of that name.
        UnknownNameError: There is no such agent.
        InUseError: An agent belongs to another cluster.
        VipuRuleError: The agents cannot be divided into so many ILDs.
    """
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
    db.check_new("clusters", cluster.name)
    db.check_new("allocations", cluster.name)
    db.insert("clusters", cluster)
    _insert_allocation(db, cluster.name, cluster.name, (1 << cluster.size) - 1)
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
        statement = "UPDATE agents SET cluster = ?1, allocation = ?1, machine = ?2 "
        db.execute(f"{statement} WHERE name = ?3", request.name, machine, name)


def _make_agents(db: Transaction, cluster: str, machines: int) -> None:
    (last,) = db.column(
        "SELECT coalesce(max(CAST(substr(name, 3) AS INTEGER)), -1) FROM agents "
        "WHERE name GLOB 'ag[0-9]*'"
    )
    for machine in range(machines):
        number = last + 1 + machine
        agent = Agent(
            name=f"ag{number}",
            host=f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
            cluster=cluster,
            machine=machine,
            allocation=cluster,
        )
        db.insert("agents", agent, made_with_cluster=True)


def set_cluster_hosts(db: Transaction, name: str, hosts: Sequence[str]) -> Cluster:
    """Name the host servers of the pods of a cluster, in their order.

    A job of several instances that is too large for one of them runs on as many as
    it needs.

    Raises:
        VipuRuleError: They cannot share its IPUs equally, or one is named twice.
    """
    cluster = replace(get_cluster(db, name), hosts=read_hosts(hosts))
    check_cluster(cluster)
    db.execute("UPDATE clusters SET hosts = ? WHERE name = ?", cluster.hosts, name)
    return cluster


def list_clusters(db: Transaction) -> tuple[Cluster, ...]:
    return db.select(Cluster, "clusters ORDER BY rowid")


def get_cluster(db: Transaction, name: str) -> Cluster:
    return db.get(Cluster, "clusters", name)


def list_free_blocks(db: Transaction, cluster: str) -> tuple[Block, ...]:
    """Return the IPUs of a cluster that are in no partition, by position."""
    get_cluster(db, cluster)
    names = db.column("SELECT name FROM allocations WHERE cluster = ?", cluster)
    blocks = [block for name in names for block in free_blocks(get_free_ipus(db, name))]
    return tuple(sorted(blocks, key=lambda block: block.first))


def remove_cluster(db: Transaction, name: str) -> None:
    """Remove a cluster, and the agents that were made with it.

    Raises:
        InUseError: There are partitions in it.
    """
    get_cluster(db, name)
    _check_empty(db, "cluster", name)
    db.execute("DELETE FROM agents WHERE cluster = ? AND made_with_cluster", name)
    nowhere = "cluster = NULL, machine = NULL, allocation = NULL"
    db.execute(f"UPDATE agents SET {nowhere} WHERE cluster = ?", name)
    db.execute("DELETE FROM clusters WHERE name = ?", name)


def _check_empty(db: Transaction, noun: str, name: str) -> None:
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


def create_agent(db: Transaction, name: str, host: str, port: int = 8080) -> Agent:
    agent = Agent(name=name, host=host, port=port)
    check_agent(agent)
    db.check_new("agents", name)
    db.insert("agents", agent, made_with_cluster=False)
    return agent


def list_agents(db: Transaction, cluster: str | None = None) -> tuple[Agent, ...]:
    if cluster is None:
        return db.select(Agent, "agents ORDER BY rowid")
    get_cluster(db, cluster)
    return db.select(Agent, "agents WHERE cluster = ? ORDER BY machine", cluster)


def get_agent(db: Transaction, name: str) -> Agent:
    return db.get(Agent, "agents", name)


def remove_agent(db: Transaction, name: str) -> None:
    """Remove an agent that is in no cluster."""
    agent = get_agent(db, name)
    if agent.cluster is not None:
        raise InUseError(
            f"Agent {name} belongs to cluster {agent.cluster}. Remove the cluster "
            "first."
        )
    db.execute("DELETE FROM agents WHERE name = ?", name)


def agents_in_trouble(
    db: Transaction, cluster: str, blocks: Iterable[Block]
) -> list[Agent]:
    """Return the agents below some IPUs that are not up."""
    trouble = "agents WHERE cluster = ? AND status <> 'up' ORDER BY machine"
    ipus = bits_of(blocks)
    agents = db.select(Agent, trouble, cluster)
    return [agent for agent in agents if _ipus_of(agent) & ipus]


def _ipus_of(agent: Agent) -> int:
    """Return the set of the IPUs of an agent that is in a cluster."""
    return bits_of([Block(first=agent.positions.start, size=IPUS_PER_MACHINE)])


def create_allocation(
    db: Transaction,
    name: str,
    cluster: str,
    agents: Sequence[str],
    users: Sequence[str] = (),
) -> Allocation:
    """Set agents of a cluster apart.

    Raises:
        InUseError: Partitions use their IPUs.
    """
    check_name("allocation", name)
    get_cluster(db, cluster)
    db.check_new("allocations", name)
    if not agents:
        raise VipuRuleError(f"Allocation {name} would have no agents. Name some.")
    check_distinct("Agent", agents)
    _insert_allocation(db, name, cluster, 0)
    for agent in [get_agent(db, agent) for agent in agents]:
        if agent.allocation != cluster:
            where = f"in allocation {agent.allocation}" if agent.allocation else "free"
            raise InUseError(
                f"Agent {agent.name} is {where}, not in cluster {cluster} without "
                "another allocation. Leave it out."
            )
        if _ipus_of(agent) & ~get_free_ipus(db, cluster):
            raise InUseError(
                f"Agent {agent.name} has IPUs in use by a partition. Remove that "
                "first, or leave the agent out."
            )
        _move(db, agent, name)
    add_users(db, name, users)
    return get_allocation(db, name)


def list_allocations(db: Transaction) -> tuple[Allocation, ...]:
    names = db.column("SELECT name FROM allocations ORDER BY rowid")
    return tuple(get_allocation(db, name) for name in names)


def get_allocation(db: Transaction, name: str) -> Allocation:
    db.check_exists("allocations", name)
    (cluster,) = db.column("SELECT cluster FROM allocations WHERE name = ?", name)
    query = "SELECT name FROM agents WHERE allocation = ? ORDER BY machine"
    agents = tuple(db.column(query, name))
    return Allocation(
        name=name, cluster=cluster, agents=agents, users=users_of(db, name)
    )


def remove_allocation(db: Transaction, name: str) -> None:
    """Give the agents of an allocation back to its cluster."""
    allocation = get_allocation(db, name)
    cluster = allocation.cluster
    if name == cluster:
        raise InUseError(
            f"Allocation {name} belongs to cluster {name} itself. Remove the cluster "
            "instead."
        )
    _check_empty(db, "allocation", name)
    for agent in allocation.agents:
        _move(db, get_agent(db, agent), cluster)
    db.execute("DELETE FROM allocations WHERE name = ?", name)


def _insert_allocation(db: Transaction, name: str, cluster: str, ipus: int) -> None:
    statement = "INSERT INTO allocations VALUES (?, ?, ?)"
    db.execute(statement, name, cluster, _bytes_of(ipus))


def count_ipus(db: Transaction, allocation: str) -> int:
    """Return how many IPUs an allocation has."""
    query = "SELECT count(*) FROM agents WHERE allocation = ?"
    (agents,) = db.column(query, allocation)
    return int(agents) * IPUS_PER_MACHINE


def get_free_ipus(db: Transaction, allocation: str) -> int:
    """Return the set of the IPUs of an allocation that are in no partition."""
    query = "SELECT free_ipus FROM allocations WHERE name = ?"
    [ipus] = db.column(query, allocation)
    return int.from_bytes(ipus, "little")


def set_free_ipus(db: Transaction, allocation: str, ipus: int) -> None:
    """Say which IPUs of an allocation are in no partition."""
    statement = "UPDATE allocations SET free_ipus = ? WHERE name = ?"
    db.execute(statement, _bytes_of(ipus), allocation)


def free(db: Transaction, allocation: str, ipus: int) -> None:
    """Give IPUs back to an allocation."""
    set_free_ipus(db, allocation, get_free_ipus(db, allocation) | ipus)


def _bytes_of(ipus: int) -> bytes:
    return ipus.to_bytes((ipus.bit_length() + 7) // 8, "little")


def _move(db: Transaction, agent: Agent, target: str) -> None:
    """Move an agent to another allocation of its cluster; its IPUs are free."""
    assert agent.allocation is not None
    ipus = _ipus_of(agent)
    set_free_ipus(db, agent.allocation, get_free_ipus(db, agent.allocation) & ~ipus)
    free(db, target, ipus)
    db.execute("UPDATE agents SET allocation = ? WHERE name = ?", target, agent.name)
