"""Whether what a server replied can be true: it may be no V-IPU server, or fail."""

from typing import Any

from poprun.vipu.leases import Grant
from poprun.vipu.model import Partition
from poprun.vipu.requests import Acquisition
from poprun.vipu.wire import WireError


def check_reply(value: Any) -> None:
    """Check the partitions of a reply.

    Raises:
        WireError: There is no such partition.
    """
    for item in value if type(value) is tuple else (value,):
        partition = item.partition if isinstance(item, Grant) else item
        if not isinstance(partition, Partition):
            continue
        counts = (partition.num_gcds, partition.gcd_size, partition.num_replicas)
        sizes = [block.size for block in partition.blocks]
        if not sizes or min(*sizes, *counts) < 1:
            raise WireError(f"a partition {partition.name[:40]!r} without IPUs")


def check_grant(grant: Grant, request: Acquisition) -> None:
    """Check that a job was granted what it has asked for.

    Raises:
        WireError: It was granted something else.
    """
    granted = (grant.partition.name, grant.lease.lease_s)
    if granted != (request.partition, request.lease_s):
        raise WireError("a grant of something else than was asked for")
    if request.lease not in ("", grant.lease.id):
        raise WireError("the lease of another job")
    sizes = [child.num_ipus for child in grant.children]
    if sizes != [request.ipus_per_child] * request.num_children:
        raise WireError("other devices than were asked for")
    if not sum(sizes) <= grant.parent.num_ipus <= grant.partition.size:
        raise WireError("a parent device that does not have the devices")
