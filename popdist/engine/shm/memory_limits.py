"""How much memory this process may still take, by its cgroups and by the kernel.

Shared memory that goes beyond them is not refused by the kernel: it ends a process.
"""

from typing import NamedTuple

from popdist.engine.cgroups import folders, lines


class _Files(NamedTuple):
    """The names of the files with the figures, in one version of cgroups."""

    limit: str
    usage: str
    # The lines of memory.stat that count files in the page cache. They are part of
    # the usage, but are freed when memory is needed.
    cached: tuple[str, str]


# By version.
_FILES = {
    1: _Files(
        limit="memory.limit_in_bytes",
        usage="memory.usage_in_bytes",
        cached=("total_active_file", "total_inactive_file"),
    ),
    2: _Files(
        limit="memory.max",
        usage="memory.current",
        cached=("active_file", "inactive_file"),
    ),
}

# Version 1 shows "no limit" as a number near the greatest.
_UNLIMITED = 1 << 60


def memory_left(root: str = "") -> int | None:
    """Return how many bytes the tightest memory cgroup has left, None without limit.

    Swap does not count: members would wait for memory that is swapped out.
    """
    groups = folders(root, {"memory"})
    left = [_left(folder, _FILES[version]) for version, folder in groups]
    return min((n for n in left if n is not None), default=None)


def commits_strictly(root: str = "") -> bool:
    """Return whether the kernel counts every page that it has promised.

    It then refuses shared memory page by page, at first touch, unless all of
    it was requested before.
    """
    return lines(f"{root}/proc/sys/vm/overcommit_memory") == ["2"]


def _left(folder: str, files: _Files) -> int | None:
    limit = lines(f"{folder}/{files.limit}")
    # The uppermost cgroup of version 2 has no such file, and neither has one without
    # the memory controller.
    if limit in ([], ["max"]) or int(limit[0]) >= _UNLIMITED:
        return None
    usage = int(lines(f"{folder}/{files.usage}")[0])
    stat = dict(line.split() for line in lines(f"{folder}/memory.stat"))
    cached = sum(int(stat.get(name, 0)) for name in files.cached)
    return max(0, int(limit[0]) - usage + min(cached, usage))


def in_units(nbytes: int) -> str:
    """Return a number of bytes for a sentence, such as `1.5 GiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} bytes"
