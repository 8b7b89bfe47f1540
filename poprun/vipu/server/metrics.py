"""Counters and gauges of a server, for Prometheus."""

from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from poprun.vipu.leases import Lease
from poprun.vipu.model import Cluster, Partition, PartitionState

CONTENT_TYPE = CONTENT_TYPE_LATEST
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The counters and gauges of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        text = "Requests, by operation and result: ok, or the code of the refusal."
        self._requests = counter("vipu_requests", text, ("operation", "result"))
        self._seconds = Histogram(
            "vipu_request_seconds",
            "How long requests took.",
            ("operation",),
            buckets=_BUCKETS,
            registry=registry,
        )
        text = "Leases that the server ended because their holders were gone."
        self._ended = counter("vipu_leases_ended", text)
        self._leases = gauge("vipu_leases", "Leases.")
        self._ipus = gauge("vipu_ipus", "IPUs of the clusters.", ("cluster",))
        text = "IPUs in partitions."
        self._used = gauge("vipu_ipus_in_partitions", text, ("cluster",))
        self._partitions = gauge("vipu_partitions", "Partitions.", ("state",))
        self._waiting = gauge("vipu_waiting", "Waiting requests.")
        self._connections = gauge("vipu_connections", "Open connections.")

    def count(self, operation: str, result: str, seconds: float) -> None:
        """Count a request that has been answered."""
        self._requests.labels(operation, result).inc()
        self._seconds.labels(operation).observe(seconds)

    def count_ended(self, leases: int) -> None:
        """Count leases that ended with their holders."""
        self._ended.inc(leases)

    def page(
        self,
        clusters: Sequence[Cluster],
        partitions: Sequence[Partition],
        leases: Sequence[Lease],
        *,
        num_connections: int,
        num_waiting: int,
    ) -> bytes:
        """Return what Prometheus reads, with the state of the inventory and server."""
        self._ipus.clear()
        self._used.clear()
        for cluster in clusters:
            self._ipus.labels(cluster.name).set(cluster.size)
            self._used.labels(cluster.name).set(0)
        for state in PartitionState:
            self._partitions.labels(state.value).set(0)
        for partition in partitions:
            self._used.labels(partition.cluster).inc(partition.size)
            self._partitions.labels(partition.state.value).inc()
        self._leases.set(len(leases))
        self._connections.set(num_connections)
        self._waiting.set(num_waiting)
        return generate_latest(self._registry)
