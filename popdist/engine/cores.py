"""How many cores this process may use, and which of them share a cache.

The machine's number of cores does not tell of the limits of cgroups: a container sees
all cores, and stands still once its share of their time is used up.
"""

import os
from collections.abc import Iterator
from itertools import count

from popdist.engine.cgroups import folders, lines

# The files with the effective cores of a cgroup, in versions 2 and 1.
_SETS = ("cpuset.cpus.effective", "cpuset.effective_cpus")


def cores_of_cgroups(root: str = "") -> int | None:
    """Return how many cores the tightest cgroup grants, None without limit.

    A share of time is rounded down to whole cores, as members that look for each
    other's steps need them at once. Files that this process may not read are ignored.
    """
    groups = folders(root, {"cpu", "cpuset"})
    granted = [cores for _, folder in groups for cores in _granted(folder)]
    return min(granted, default=None)


def cores_of_cache(core: int, root: str = "") -> set[int]:
    """Return the cores that share this core's last-level cache.

    Where the kernel shows no caches, these are the cores of its socket, else all cores.
    """
    folder = f"{root}/sys/devices/system/cpu/cpu{core}"
    sharers = lines(f"{folder}/topology/package_cpus_list")
    # The last index is of the last level.
    for index in count():
        shared = lines(f"{folder}/cache/index{index}/shared_cpu_list")
        if not shared:
            break
        sharers = shared
    if not sharers:
        return set(range(os.cpu_count() or 1)) | {core}
    return {each for part in sharers[0].split(",") for each in _range(part)}


def _granted(folder: str) -> Iterator[int]:
    for name in _SETS:
        for line in filter(None, lines(f"{folder}/{name}")):
            yield sum(len(_range(part)) for part in line.split(",") if part)
    for line in lines(f"{folder}/cpu.max"):
        yield from _whole_cores(*line.split())
    quota = lines(f"{folder}/cpu.cfs_quota_us")
    period = lines(f"{folder}/cpu.cfs_period_us")
    if quota and period:
        yield from _whole_cores(quota[0], period[0])


def _range(cores: str) -> range:
    """Return the cores of a range such as `4-7`."""
    first, _, last = cores.partition("-")
    return range(int(first), int(last or first) + 1)


def _whole_cores(quota: str, period: str) -> Iterator[int]:
    # Version 2 says "no limit" in a word, version 1 with -1.
    if quota not in ("max", "-1"):
        yield max(1, int(quota) // int(period))
