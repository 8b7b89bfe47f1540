"""The part of an embedded inventory that makes and changes partitions."""

from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.store import Store
from poprun.vipu.inventory.tables import (
    creation,
    device_store,
    lease_store,
    partition_store,
)
from poprun.vipu.model import Partition, PartitionState
from poprun.vipu.requests import PartitionChange, PartitionRequest


class StoredPartitions(Store):
    """Partitions."""

    def create_partition(self, request: PartitionRequest) -> Partition:
        return self._change(
            lambda db: creation.create_partition(db, request, strict=self._strict)
        )

    def list_partitions(self, user: str | None = None) -> tuple[Partition, ...]:
        self._end_seen_dead()
        with self._read() as db:
            found = partition_store.list_partitions(db, user)
        return tuple(map(self._refreshed, found))

    def get_partition(self, name: str, user: str | None = None) -> Partition:
        self._end_seen_dead()
        with self._read() as db:
            found = partition_store.get_partition(db, name, user)
        return self._refreshed(found)

    def reset_partition(
        self, name: str, user: str | None = None, *, lease: str | None = None
    ) -> Partition:
        def reset(db: Connection) -> Partition:
            partition = partition_store.get_partition(db, name, user)
            device_store.check_unused(db, partition, "reset", lease)
            return creation.reset_partition(db, partition)

        return self._change(reset)

    def update_partition(
        self,
        name: str,
        change: PartitionChange,
        user: str | None = None,
        *,
        lease: str | None = None,
    ) -> Partition:
        def update(db: Connection) -> Partition:
            partition = partition_store.get_partition(db, name, user)
            device_store.check_unused(db, partition, "updated", lease)
            return creation.update_partition(db, partition, change, self._strict)

        return self._change(update)

    def remove_partition(
        self,
        name: str,
        user: str | None = None,
        *,
        lease: str | None = None,
        force: bool = False,
    ) -> None:
        def remove(db: Connection) -> None:
            partition = partition_store.get_partition(db, name, user)
            if force:
                for reservation in device_store.list_reservations(db, name):
                    lease_store.end_lease(db, reservation.lease.id)
            else:
                device_store.check_unused(db, partition, "removed", lease)
                device_store.release_devices(db, name)
            partition_store.delete_partition(db, name)

        self._change(remove)

    def _refreshed(self, partition: Partition) -> Partition:
        if partition.state is not PartitionState.PENDING:
            return partition
        with self._write() as db:
            found = partition_store.find_partition(db, partition.name)
            if found is None:  # removed in the meantime
                return partition
            return partition_store.refresh(db, found)
