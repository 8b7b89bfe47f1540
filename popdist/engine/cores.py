"""How many cores this process may use: the limits of its cgroups of processors.

The machine's number of cores does not tell of them: a container sees all cores, and
stands still once its share of their time is used up.
"""

from collections.abc import Iterator

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


def _granted(folder: str) -> Iterator[int]:
    for name in _SETS:
        for line in filter(None, lines(f"{folder}/{name}")):
            yield sum(_length(part) for part in line.split(",") if part)
    for line in lines(f"{folder}/cpu.max"):
        yield from _whole_cores(*line.split())
    quota = lines(f"{folder}/cpu.cfs_quota_us")
    period = lines(f"{folder}/cpu.cfs_period_us")
    if quota and period:
        yield from _whole_cores(quota[0], period[0])


def _length(cores: str) -> int:
    """Return how many cores a range such as `4-7` has."""
    first, _, last = cores.partition("-")
    return int(last or first) - int(first) + 1


def _whole_cores(quota: str, period: str) -> Iterator[int]:
    # Version 2 says "no limit" in a word, version 1 with -1.
    if quota not in ("max", "-1"):
        yield max(1, int(quota) // int(period))
