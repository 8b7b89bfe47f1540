"""The sizes at which a group changes algorithms, and its blocks and spins."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from popdist.engine.cores import cores_of_cache, cores_of_cgroups

# The measurements of `python -m popdist.bench --tune`.
_TABLE = os.path.join(os.path.dirname(__file__), "tuning.json")

# The number of members in the measurement with a core for each, and the least size of
# oneshot with any number of members.
_MEASURED_MEMBERS = 2
_LEAST_ONESHOT = 2048
# The core takes no more of these.
_MOST_ONESHOT = 1 << 16
MOST_MEMBERS = 256

# The core takes no smaller blocks.
_LEAST_BLOCK = 1 << 16
# The most that the slots of all members take: above 64 members, blocks are smaller.
# A slot has two phases, each with room for a block of the largest size that the core
# may choose, four times as large as the first one.
_MOST_SLOT_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Sizes and times that must be equal on all members of a group.

    oneshot_bytes: Up to here, each member adds up the whole arrays of all.
    block_bytes: How much of a larger array is on its way at once, at first: the core
        tries smaller and larger blocks, and chooses.
    spin_us: How long a member polls for another's step before it yields its core.
    """

    oneshot_bytes: int = 2048
    block_bytes: int = 1 << 19
    spin_us: int = 50

    def fitted(self) -> Self:
        """Return a tuning that the core accepts."""
        return replace(self, block_bytes=max(self.block_bytes, _LEAST_BLOCK))

    def entry(self, size: int, cores: int) -> dict[str, str | int]:
        """Return the table's entry for a measurement with so many members."""
        crowded = size > cores
        oneshot = self.oneshot_bytes
        if not crowded:
            oneshot = oneshot * max(size, _MEASURED_MEMBERS) // _MEASURED_MEMBERS
        return {
            "members": "crowded" if crowded else "fit",
            "oneshot_bytes": min(oneshot, _MOST_ONESHOT),
            "block_bytes": self.block_bytes,
            "spin_us": self.spin_us,
        }

    @classmethod
    def measured(cls, size: int, cores: int) -> Self:
        """Return the tuning for so many members on so many cores.

        Members that share cores must give them up at once, and are better off with
        few large blocks. With a core each, all of them read what each one has said,
        so the more there are, the smaller an array must be for oneshot to win.
        """
        with open(_TABLE, encoding="utf-8") as file:
            table = json.load(file)
        wanted = "crowded" if size > cores else "fit"
        entry = next(e for e in table["entries"] if e["members"] == wanted)
        oneshot = int(entry["oneshot_bytes"])
        if wanted == "fit" and size > _MEASURED_MEMBERS:
            scaled = max(oneshot * _MEASURED_MEMBERS // size, _LEAST_ONESHOT)
            oneshot = min(oneshot, scaled)
        return cls(
            oneshot_bytes=oneshot,
            block_bytes=min(
                entry["block_bytes"], _MOST_SLOT_BYTES // (8 * size) & -4096
            ),
            spin_us=entry["spin_us"],
        ).fitted()


def cores_of_host() -> int:
    """Return how many cores the members of this host can use together at most.

    The cores to which this process alone is bound do not matter: the others have
    other ones.
    """
    granted = cores_of_cgroups()
    here = os.cpu_count() or 1
    return here if granted is None else min(here, granted)


def cores_of_members(pids: Sequence[int]) -> int:
    """Return how many cores these processes can use together.

    They may be bound to fewer cores than the host has, each to its own or all to the
    same ones.
    """
    bound: set[int] = set()
    for pid in pids:
        try:
            bound |= os.sched_getaffinity(pid)
        except ProcessLookupError:
            # It has ended, so the group will not begin.
            continue
        except OSError:
            # A sandbox does not let us ask.
            return cores_of_host()
    return min(len(bound), cores_of_host()) if bound else cores_of_host()


def caches_of_members(pids: Sequence[int]) -> bytes:
    """Return a number for each process: those with equal ones share a last-level cache.

    A process that may run on the cores of several caches belongs to none. Then, or if
    a sandbox hides the cores, all numbers are 0.
    """
    sharers: dict[frozenset[int], int] = {}
    found = []
    for pid in pids:
        try:
            bound = os.sched_getaffinity(pid)
        except OSError:
            return bytes(len(pids))
        cache = frozenset(cores_of_cache(min(bound)))
        if not bound <= cache:
            return bytes(len(pids))
        found.append(sharers.setdefault(cache, len(sharers)))
    return bytes(found)
