"""The part of an embedded inventory that an administrator changes."""

from collections.abc import Sequence

from poprun.vipu.inventory.store import Store
from poprun.vipu.inventory.tables import allocation_store, cluster_store, user_store
from poprun.vipu.model import (
    Agent,
    AgentStatus,
    Allocation,
    Block,
    Cluster,
    User,
)
from poprun.vipu.requests import ClusterRequest


class StoredMachines(Store):
    """Clusters, agents, allocations and users. `interface.Machines` documents them."""

    def create_cluster(self, request: ClusterRequest) -> Cluster:
        with self._write() as db:
            return cluster_store.create_cluster(db, request)

    def list_clusters(self) -> tuple[Cluster, ...]:
        with self._read() as db:
            return cluster_store.list_clusters(db)

    def get_cluster(self, name: str) -> Cluster:
        with self._read() as db:
            return cluster_store.get_cluster(db, name)

    def list_free_blocks(self, cluster: str) -> tuple[Block, ...]:
        self._end_seen_dead()
        with self._read() as db:
            return cluster_store.list_free_blocks(db, cluster)

    def remove_cluster(self, name: str) -> None:
        self._change(lambda db: cluster_store.remove_cluster(db, name))

    def create_agent(self, name: str, host: str, port: int = 8080) -> Agent:
        agent = Agent(name=name, host=host, port=port)
        with self._write() as db:
            return cluster_store.create_agent(db, agent)

    def list_agents(self, cluster: str | None = None) -> tuple[Agent, ...]:
        with self._read() as db:
            return cluster_store.list_agents(db, cluster)

    def get_agent(self, name: str) -> Agent:
        with self._read() as db:
            return cluster_store.get_agent(db, name)

    def remove_agent(self, name: str) -> None:
        with self._write() as db:
            cluster_store.remove_agent(db, name)

    def set_agent_status(self, name: str, status: AgentStatus) -> Agent:
        with self._write() as db:
            return cluster_store.set_agent_status(db, name, status)

    def create_allocation(
        self,
        name: str,
        cluster: str,
        agents: Sequence[str],
        users: Sequence[str] = (),
    ) -> Allocation:
        return self._change(
            lambda db: allocation_store.create_allocation(
                db, name, cluster, agents, users
            )
        )

    def list_allocations(self) -> tuple[Allocation, ...]:
        with self._read() as db:
            return allocation_store.list_allocations(db)

    def get_allocation(self, name: str) -> Allocation:
        with self._read() as db:
            return allocation_store.get_allocation(db, name)

    def remove_allocation(self, name: str) -> None:
        self._change(lambda db: allocation_store.remove_allocation(db, name))

    def create_user(
        self, name: str, allocations: Sequence[str] = (), *, is_admin: bool = False
    ) -> str:
        user = User(name=name, is_admin=is_admin, allocations=tuple(allocations))
        with self._write() as db:
            return user_store.create_user(db, user)

    def list_users(self) -> tuple[User, ...]:
        with self._read() as db:
            return user_store.list_users(db)

    def get_user(self, name: str) -> User:
        with self._read() as db:
            return user_store.get_user(db, name)

    def remove_user(self, name: str) -> None:
        with self._write() as db:
            user_store.remove_user(db, name)

    def check_access(self, name: str, access_key: str) -> User:
        with self._read() as db:
            return user_store.check_access(db, name, access_key)
