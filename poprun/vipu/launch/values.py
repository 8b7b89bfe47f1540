"""The request of a job for a partition, and the devices of its instances.

The plan makes them of the settings, for every job, so this imports next to nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poprun.words import counted

if TYPE_CHECKING:
    from poprun.vipu.client.server_address import ServerAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """The partition that the user wants, as V-IPU's options describe it."""

    # None for the inventory of this user on this machine.
    server: "ServerAddress | None" = None
    timeout_s: int = 10
    # None for the only one there is, or else one for this job alone.
    name: str | None = None
    # The possible names of a partition that a batch system has made for its job.
    batch_names: Sequence[str] = ()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDevices:
    """The devices of neighbouring instances: one for each, all of one size."""

    partition: str
    # How many IPUs each device has.
    num_ipus: int
    # The index of the first instance, and the ids of the devices from that on.
    first: int
    ids: Sequence[int]

    def device_id(self, index: int) -> int:
        """Return the id of the device of an instance."""
        return self.ids[index - self.first]

    def refusal(self, index: int, reason: str) -> str:
        """Return a sentence: why an instance cannot attach to its device."""
        return (
            f"Instance {index} cannot attach to device {self.device_id(index)} "
            f"({counted(self.num_ipus, 'IPU')}) of partition {self.partition}: {reason}"
        )


def compact_json(value: object) -> str:
    """Write JSON without spaces, as Poplar reads its target options."""
    return json.dumps(value, separators=(",", ":"))
