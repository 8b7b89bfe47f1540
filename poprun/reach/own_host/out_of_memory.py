"""Reads how many processes the kernel killed because memory ran out."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from poprun.reach.own_host.cgroups import ROOT, hierarchies, read_text
from poprun.wire.field_types import Long

# The files of each version with the counters and the limit of a group.
_FILES = {
    1: ("memory.oom_control", "memory.limit_in_bytes"),
    2: ("memory.events", "memory.max"),
}
# cgroup v1 has this number for "no limit", give or take a page.
NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCounters:
    """How many processes the kernel has killed, and the limit of memory in bytes.

    `kills` counts processes of poprun's cgroup, and `host_kills` processes of the whole
    machine, None where the kernel does not count.
    """

    kills: Long = 0
    limit: Long | None = None
    host_kills: Long | None = None

    def since(self, before: "MemoryCounters") -> "MemoryCounters":
        """Return how many processes were killed since the counters were read before."""
        host_kills = None
        if self.host_kills is not None and before.host_kills is not None:
            host_kills = self.host_kills - before.host_kills
        return replace(self, kills=self.kills - before.kills, host_kills=host_kills)


def read_host() -> MemoryCounters:
    """Return the counters, and the memory of the machine if no limit is lower."""
    counters = replace(read_group(), host_kills=_counter(read_text("/proc/vmstat")))
    if counters.limit is not None:
        return counters
    return replace(counters, limit=machine_memory(read_text("/proc/meminfo")))


def machine_memory(meminfo: str) -> int | None:
    """Return the bytes of memory of a machine from the text of its /proc/meminfo."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) << 10
    return None


def read_group(membership: str | None = None, root: str = ROOT) -> MemoryCounters:
    """Read the counters of this process's cgroup.

    Args:
        membership: The text of /proc/self/cgroup.
    """
    if membership is None:
        membership = read_text("/proc/self/cgroup")
    kills = 0
    limits: list[int] = []
    for version, folders in hierarchies("memory", membership, root):
        events, limit = _FILES[version]
        kills += _counter(read_text(os.path.join(folders[0], events))) or 0
        # The tightest limit of the group and of the groups that it is in counts.
        limits += _limits(read_text(os.path.join(folder, limit)) for folder in folders)
    return MemoryCounters(kills=kills, limit=min(limits, default=None))


def _limits(texts: Iterable[str]) -> Iterator[int]:
    for text in map(str.strip, texts):
        if text.isascii() and text.isdigit() and int(text) < NO_LIMIT:
            yield int(text)


def _counter(text: str) -> int | None:
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.isdigit():
            return int(number)
    return None
