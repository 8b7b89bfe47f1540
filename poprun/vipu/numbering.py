"""The numbers of devices, GCDs and IPUs in a partition. Pure.

A device is a set of neighbouring IPUs that a process can attach to. A reconfigurable
partition of 2^k IPUs has a device for each aligned power of two: first the single
IPUs are numbered, then the pairs, then the fours, up to the whole. With 64 IPUs the
singles are 0 to 63, the first pair is 64 and the whole is 126.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
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
