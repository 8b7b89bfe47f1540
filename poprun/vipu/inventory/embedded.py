"""The inventory of one user on one machine, and a server's own: a SQLite database."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from poprun.vipu.inventory.location import find_inventory
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.stored_devices import StoredDevices
from poprun.vipu.inventory.stored_partitions import StoredPartitions
from poprun.vipu.inventory.tables import cluster_store
from poprun.vipu.model import Cluster
from poprun.vipu.rules import presets

if TYPE_CHECKING:  # it takes 3 ms, and nothing of it runs
    from poprun.vipu.inventory.interface import Inventory


class EmbeddedInventory(StoredPartitions, StoredDevices):
    """An inventory in a file."""

    def ensure_cluster(self, num_ipus: int, num_ilds: int = 1) -> Cluster | None:
        with self._read() as db:
            if not _is_missing(db, num_ipus, num_ilds):
                return None
        request = presets.preset(presets.pod_for(num_ipus, num_ilds), automatic=True)
        with self._write() as db:
            if not _is_missing(db, num_ipus, num_ilds):
                return None
            return cluster_store.create_cluster(db, request)


def open_embedded(
    environ: Mapping[str, str],
    host: str,
    timeout_s: float = 10.0,
    *,
    syncs: bool = True,
) -> "Inventory":
    """Open the inventory of this user on this machine; make it on first use.

    Raises:
        InventoryUnavailableError: There is no place for it that can be written to.
        InventoryError: It is damaged, locked for too long, of a newer poprun, or the
            disk is full.
    """
    path = find_inventory(environ, host)
    return EmbeddedInventory(path, host=host, timeout_s=timeout_s, syncs=syncs)


def _is_missing(db: Connection, num_ipus: int, num_ilds: int) -> bool:
    clusters = cluster_store.list_clusters(db)
    return all(
        cluster.automatic and (cluster.size < num_ipus or cluster.num_ilds < num_ilds)
        for cluster in clusters
    )
