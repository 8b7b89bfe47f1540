"""How many cores this process may use: the limits of its cgroups of processors.

The machine's number of cores does not tell of them: a container sees all cores, and
stands still once its share of their time is used up.
"""

from collections.abc import Iterator

from popdist.engine.memory import _upwards

# What versions 2 and 1 call the file with the cores that a cgroup has in the end.
_SETS = ("cpuset.cpus.effective", "cpuset.effective_cpus")


def cores_of_cgroups(root: str = "") -> int | None:
    """Return how many cores the tightest cgroup grants, None without limit.

    A share of time is rounded down to whole cores, as members that look for each
    other's steps need them at once. What this process may not read is no limit.
    """
    granted = [cores for folder in _folders(root) for cores in _granted(folder)]
    return min(granted, default=None)


def _folders(root: str) -> Iterator[str]:
    """Yield the folder of each cgroup with a say that this process is in."""
    mounts = list(_mounts(root))
    for line in _lines(f"{root}/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for known, top, point in mounts:
            # Version 2 has one tree, and names no controllers.
            if known & set(controllers.split(",")):
                yield from _upwards(path, top, point)


def _mounts(root: str) -> Iterator[tuple[set[str], str, str]]:
    """Yield which controllers are mounted, which cgroup is on top there, and where."""
    for line in _lines(f"{root}/proc/self/mountinfo"):
        # ID, parent, device, root, mount point, ... - type, source, options
        mount, _, filesystem = line.partition(" - cgroup")
        if not filesystem:
            continue
        version, _, options = filesystem.split(" ", 2)
        top, point = mount.split(" ")[3:5]
        known = {""} if version == "2" else {"cpu", "cpuset"} & set(options.split(","))
        yield known, top, root + point


def _granted(folder: str) -> Iterator[int]:
    for name in _SETS:
        for line in filter(None, _lines(f"{folder}/{name}")):
            yield sum(_length(part) for part in line.split(",") if part)
    for line in _lines(f"{folder}/cpu.max"):
        yield from _whole_cores(*line.split())
    quota = _lines(f"{folder}/cpu.cfs_quota_us")
    period = _lines(f"{folder}/cpu.cfs_period_us")
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


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        # No cgroups, or none of this version, or a sandbox around this process.
        return []
