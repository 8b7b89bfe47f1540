"""The numbers of devices, GCDs and IPUs in a partition. Pure.

A device is a set of neighbouring IPUs that a process can attach to. A reconfigurable
partition of 2^k IPUs has a device for each aligned power of two: first the single
IPUs are numbered, then the pairs, then the fours, up to the whole. With 64 IPUs the
singles are 0 to 63, the first pair is 64 and the whole is 126. The devices of other
partitions have the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from poprun.vipu.model import Block, Partition, is_power_of_two
from poprun.vipu.rules.free_ipus import bits_of, first_block


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device: its id, and the IPUs that it has, by their index in the partition."""

    id: int
    first: int
    num_ipus: int

    @property
    def ipus(self) -> range:
        return range(self.first, self.first + self.num_ipus)


def first_device(partition_size: int, num_ipus: int) -> int:
    """Return the id of the first device with `num_ipus`, both powers of two."""
    return 2 * partition_size - 2 * partition_size // num_ipus


def make_device(partition_size: int, first: int, num_ipus: int) -> Device:
    """Return the device with these IPUs.

    IPUs that are no aligned power of two have no number in V-IPU. Their device has the
    number of the first IPU.
    """
    if is_power_of_two(num_ipus) and first % num_ipus == 0:
        number = first_device(partition_size, num_ipus) + first // num_ipus
    else:
        number = first
    return Device(id=number, first=first, num_ipus=num_ipus)


def children_of(
    partition_size: int, parent: Device, num_children: int, ipus_per_child: int
) -> tuple[Device, ...]:
    """Return the child devices of a parent device, in rank order."""
    return tuple(
        make_device(partition_size, parent.first + n * ipus_per_child, ipus_per_child)
        for n in range(num_children)
    )


def first_free(partition_size: int, num_ipus: int, reserved: Sequence[Device]) -> int:
    """Return the first IPU of the first free device of a size, -1 if there is none.

    Takes time in proportion to the number of reserved devices.
    """
    free = (1 << partition_size) - 1
    for device in reserved:
        free &= ~bits_of([Block(first=device.first, size=device.num_ipus)])
    return first_block(free, num_ipus)


def positions(partition: Partition) -> tuple[int, ...]:
    """Return the position in the cluster of each IPU of a partition, by its index."""
    return tuple(p for block in partition.blocks for p in block.positions)
