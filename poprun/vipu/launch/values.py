"""What a job asks of V-IPU, and which inventory it asks. Frozen values.

The plan makes them of the settings, for every job, so this imports next to nothing.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from poprun.vipu.client.server_address import ServerAddress


class PartitionOptions(NamedTuple):
    """What the user wants of the partition, as V-IPU's options say it."""

    # None for the inventory of this user on this machine.
    server: "ServerAddress | None" = None
    timeout_s: int = 10
    # None for the only one there is, or else one for this job alone.
    name: str | None = None
    attempts: int = 1
    # How long to wait for IPUs that are in use; None to be refused at once.
    wait_s: float | None = None
    update: bool = False
    # None to reset it unless it is reconfigurable.
    reset: bool | None = None
    remove: bool = True
    allocation: str | None = None
    cluster: str | None = None
    link_routing: str | None = None
    gateway_routing: str | None = None
    sync_type: str | None = None
    # None for as many as the size needs.
    num_ilds: int | None = None
