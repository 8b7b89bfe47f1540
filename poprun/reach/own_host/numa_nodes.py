"""Reads from the kernel the CPUs and NUMA nodes that this process may use.

Containers hide parts of /sys and /proc: CPUs of unknown nodes count as one node without
known memory, and nothing here fails.
"""

import os
from collections.abc import Collection

from poprun.plan.host_facts import Machine, Node, parse_ranges
from poprun.reach.own_host.cgroups import read_text


def read_machine(
    root: str | os.PathLike[str] = "/sys",
    *,
    status: str | None = None,
    affinity: Collection[int] | None = None,
) -> Machine:
    """Return the part of the machine that the calling process may use.

    Args:
        root: Where sysfs is mounted.
        status: The text of /proc/self/status; read from there if None.
        affinity: The CPUs that may be used; if None, the kernel's mask of this
            process, which never leaves its cpuset and leaves out offline CPUs.
    """
    system = os.path.join(root, "devices", "system")
    usable = set(os.sched_getaffinity(0) if affinity is None else affinity)
    memory = _memory_nodes(
        system, read_text("/proc/self/status") if status is None else status
    )

    nodes = []
    for index, cpus in sorted(_nodes(system).items()):
        allowed = usable & cpus
        usable -= allowed
        if allowed:
            has_memory = memory is None or index in memory
            nodes.append(
                Node(
                    index=index if has_memory else None, cpus=_by_core(system, allowed)
                )
            )
    if usable:
        nodes.append(Node(index=None, cpus=_by_core(system, usable)))
    return Machine(nodes=tuple(nodes))


def _nodes(system: str) -> dict[int, set[int]]:
    directory = os.path.join(system, "node")
    try:
        names = os.listdir(directory)
    except OSError:
        return {}
    return {
        int(name.removeprefix("node")): set(
            _cpu_list(os.path.join(directory, name, "cpulist")) or ()
        )
        for name in names
        if name.startswith("node") and name.removeprefix("node").isdecimal()
    }


def _memory_nodes(system: str, status: str) -> set[int] | None:
    """Return the nodes with memory that we may allocate, or None for all."""
    limits = [_cpu_list(os.path.join(system, "node", "has_memory"))]
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "Mems_allowed_list":
            limits.append(parse_ranges(value))
    known = [set(limit) for limit in limits if limit is not None]
    return set.intersection(*known) if known else None


def _by_core(system: str, cpus: Collection[int]) -> tuple[int, ...]:
    """Order CPUs so that the threads of one core stand next to each other."""

    def core(cpu: int) -> tuple[int, int]:
        siblings = _cpu_list(
            os.path.join(system, "cpu", f"cpu{cpu}", "topology", "thread_siblings_list")
        )
        return min(siblings or (cpu,)), cpu

    return tuple(sorted(cpus, key=core))


def _cpu_list(path: str) -> tuple[int, ...] | None:
    # An empty list is an answer (a node without CPUs), an empty file is none.
    text = read_text(path)
    return parse_ranges(text) if text else None
