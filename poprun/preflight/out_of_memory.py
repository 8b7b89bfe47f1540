"""Reads how many processes of this host the kernel has killed for want of memory."""

import os
from collections.abc import Iterator

from poprun.record import Record, replace

ROOT = "/sys/fs/cgroup"
# What cgroup v1 says for "no limit", give or take a page.
NO_LIMIT = 1 << 62


class MemoryCounters(Record):
    """How many processes the kernel has killed, and the limit of memory in bytes.

    `kills` counts those of poprun's cgroup, and `host_kills` those of the whole
    machine, None where the kernel does not count them.
    """

    kills: int = 0
    limit: int | None = None
    host_kills: int | None = None


def read_host() -> MemoryCounters:
    """Return the counters, and the memory of the machine if no limit is lower."""
    counters = replace(read_group(), host_kills=_counter(_text("/proc/vmstat")))
    if counters.limit is not None:
        return counters
    return replace(counters, limit=machine_memory(_text("/proc/meminfo")))


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
        membership: What /proc/self/cgroup says.
    """
    if membership is None:
        membership = _text("/proc/self/cgroup")
    kills = 0
    limits: list[int] = []
    for top, group, events, limit in _groups(membership, root):
        if not os.path.isdir(os.path.join(top, group)):
            group = ""  # a container that sees its own group as the uppermost
        kills += _counter(_text(os.path.join(top, group, events))) or 0
        limits += _limits(top, group, limit)
    return MemoryCounters(kills=kills, limit=min(limits, default=None))


def _groups(membership: str, root: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the tops of hierarchies, our group there, its counters and its limit."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        group = path.lstrip("/")
        if controllers == "memory":
            top = os.path.join(root, "memory")
            yield top, group, "memory.oom_control", "memory.limit_in_bytes"
        elif not controllers:
            for top in (root, os.path.join(root, "unified")):
                yield top, group, "memory.events", "memory.max"


def _limits(top: str, group: str, name: str) -> Iterator[int]:
    """Yield the limits of a group and of those that it is in: the tightest counts."""
    while True:
        text = _text(os.path.join(top, group, name)).strip()
        if text.isascii() and text.isdigit() and int(text) < NO_LIMIT:
            yield int(text)
        if not group:
            return
        group = os.path.dirname(group)


def _counter(text: str) -> int | None:
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.isdigit():
            return int(number)
    return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:  # not this version of cgroups, or not mounted
        return ""
