"""Reads the cgroups of this process, of either version, and their share of the CPUs."""

import os
import re
from collections.abc import Iterator, Sequence

ROOT = "/sys/fs/cgroup"
# The kernel writes microseconds in 64 bits, and does not accept 0.
_NUMBER = "[1-9][0-9]{0,18}"


def hierarchies(
    controller: str, membership: str, root: str
) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the version of each hierarchy that can have a controller, and its folders.

    The folder of this process's group comes first, then the groups above it.

    Args:
        membership: The text of /proc/self/cgroup.
    """
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue  # a sandbox has put it there
        if controller in controllers.split(","):
            top = os.path.join(root, controller)
            # Usually "cpu" is a link to "cpu,cpuacct".
            top = top if os.path.isdir(top) else os.path.join(root, controllers)
            yield 1, _folders(top, path)
        elif not controllers:
            for top in (root, os.path.join(root, "unified")):
                yield 2, _folders(top, path)


def _folders(top: str, path: str) -> list[str]:
    group = path.lstrip("/")
    if not os.path.isdir(os.path.join(top, group)):
        group = ""  # a container that sees its own group as the uppermost
    folders = [os.path.join(top, group)]
    while group:
        group = os.path.dirname(group)
        folders.append(os.path.join(top, group))
    return folders


def read_cpu_quota(membership: str | None = None, root: str = ROOT) -> float | None:
    """Return the CPU time of this process in CPUs; None without a limit.

    Args:
        membership: The text of /proc/self/cgroup.
    """
    if membership is None:
        membership = read_text("/proc/self/cgroup")
    quotas = [
        int(quota) / int(period)
        for version, folders in hierarchies("cpu", membership, root)
        for folder in folders
        for quota, period in _quota(version, folder)
        # No limit is "max", or -1.
        if re.fullmatch(_NUMBER, quota) and re.fullmatch(_NUMBER, period)
    ]
    return min(quotas, default=None)


def _quota(version: int, folder: str) -> Iterator[tuple[str, str]]:
    names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = " ".join(read_text(os.path.join(folder, name)) for name in names).split()
    if len(words) == 2:
        yield words[0], words[1]


def read_text(path: str) -> str:
    """Return the text of a file of the kernel, "" if there is none."""
    try:
        with open(path, encoding="ascii", errors="surrogateescape") as file:
            return file.read()
    except OSError:  # not this version of cgroups, or not mounted
        return ""
