"""Counters and gauges of a server, for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.model import PartitionState

CONTENT_TYPE = CONTENT_TYPE_LATEST
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

REQUESTS = Counter(
    "vipu_requests",
    "Requests, by operation and result: ok, or the code of the refusal.",
    ("operation", "result"),
)
SECONDS = Histogram(
    "vipu_request_seconds", "How long requests took.", ("operation",), buckets=_BUCKETS
)
LEASES_ENDED = Counter(
    "vipu_leases_ended", "Leases that the server ended because their holders were gone."
)
LEASES = Gauge("vipu_leases", "Leases.")
IPUS = Gauge("vipu_ipus", "IPUs of the clusters.", ("cluster",))
IPUS_IN_PARTITIONS = Gauge(
    "vipu_ipus_in_partitions", "IPUs in partitions.", ("cluster",)
)
PARTITIONS = Gauge("vipu_partitions", "Partitions.", ("state",))
WAITING = Gauge("vipu_waiting", "Waiting requests.")
CONNECTIONS = Gauge("vipu_connections", "Open connections.")


def page(inventory: Inventory) -> bytes:
    """Return the page for Prometheus, with an inventory as it is now."""
    IPUS.clear()
    IPUS_IN_PARTITIONS.clear()
    for cluster in inventory.list_clusters():
        IPUS.labels(cluster.name).set(cluster.size)
        IPUS_IN_PARTITIONS.labels(cluster.name).set(0)
    for state in PartitionState:
        PARTITIONS.labels(state.value).set(0)
    for partition in inventory.list_partitions():
        IPUS_IN_PARTITIONS.labels(partition.cluster).inc(partition.size)
        PARTITIONS.labels(partition.state.value).inc()
    LEASES.set(len(inventory.list_leases()))
    return generate_latest()
