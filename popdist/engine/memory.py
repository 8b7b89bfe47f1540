"""How much memory this process may still take, by its cgroups and by the kernel.

Shared memory that goes beyond them is not refused by the kernel: it ends a process.
"""

from collections.abc import Iterator
from typing import NamedTuple


class _Files(NamedTuple):
    """What a version of cgroups calls the files with its figures."""

    limit: str
    usage: str
    # The lines of memory.stat that count files in the page cache. They are part of
    # the usage, but make room when somebody needs it.
    cached: tuple[str, str]


_V1 = _Files(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    cached=("total_active_file", "total_inactive_file"),
)
_V2 = _Files(
    limit="memory.max",
    usage="memory.current",
    cached=("active_file", "inactive_file"),
)

# Version 1 says "no limit" with a number near the greatest.
_UNLIMITED = 1 << 60


def memory_left(root: str = "") -> int | None:
    """Return how many bytes the tightest memory cgroup has left, None without limit.

    Swap does not count: memory that members wait for has no business there.
    """
    left = [_left(folder, files) for folder, files in _groups(root)]
    return min((n for n in left if n is not None), default=None)


def commits_strictly(root: str = "") -> bool:
    """Return whether the kernel counts every page that it has promised.

    It then refuses shared memory page by page, at first touch, unless it was asked
    for all of it before.
    """
    return _lines(f"{root}/proc/sys/vm/overcommit_memory") == ["2"]


def _groups(root: str) -> Iterator[tuple[str, _Files]]:
    """Yield the folder of each memory cgroup that this process is in."""
    mounts = list(_mounts(root))
    for line in _lines(f"{root}/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _V1 if controllers else _V2
        for mounted, top, point in mounts:
            if mounted is files:
                yield from ((folder, files) for folder in _upwards(path, top, point))


def _mounts(root: str) -> Iterator[tuple[_Files, str, str]]:
    """Yield where memory cgroups are mounted, and which cgroup is on top there."""
    for line in _lines(f"{root}/proc/self/mountinfo"):
        # ID, parent, device, root, mount point, ... - type, source, options
        mount, _, filesystem = line.partition(" - cgroup")
        if not filesystem:
            continue
        version, _, options = filesystem.split(" ", 2)
        top, point = mount.split(" ")[3:5]
        if version == "2":
            yield _V2, top, root + point
        elif "memory" in options.split(","):
            yield _V1, top, root + point


def _upwards(path: str, top: str, point: str) -> Iterator[str]:
    """Yield the folder of a cgroup and those above it, as far as they can be seen."""
    top = top.rstrip("/")
    # In a container the path may be one of the host, which is not mounted here: the
    # container's own cgroup is then the top.
    below = path[len(top) :] if f"{path}/".startswith(f"{top}/") else ""
    folder = point if "/.." in below else point + below.rstrip("/")
    while len(folder) > len(point):
        yield folder
        folder = folder.rpartition("/")[0]
    yield point


def _left(folder: str, files: _Files) -> int | None:
    limit = _lines(f"{folder}/{files.limit}")
    # The uppermost cgroup of version 2 has no such file, and neither has one without
    # the memory controller.
    if limit in ([], ["max"]) or int(limit[0]) >= _UNLIMITED:
        return None
    usage = int(_lines(f"{folder}/{files.usage}")[0])
    stat = dict(line.split() for line in _lines(f"{folder}/memory.stat"))
    cached = sum(int(stat.get(name, 0)) for name in files.cached)
    return max(0, int(limit[0]) - usage + min(cached, usage))


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []  # A kernel without cgroups, or a sandbox without /proc.


def in_words(nbytes: int) -> str:
    """Return a number of bytes for a sentence, such as `1.5 GiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} bytes"
