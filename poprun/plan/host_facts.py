"""The facts of a host that a plan depends on. Agents import this: it imports little."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from poprun.wire.field_types import Address, FilePath, Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """CPUs that are equally near to each other's memory.

    The index is None if the memory is unknown, missing or not allowed.
    """

    index: int | None
    # In an order that puts the threads of a core next to each other.
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The CPUs of the machine that the caller may use, by NUMA node."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.nodes or not all(node.cpus for node in self.nodes):
            raise ValueError("A machine has nodes, and each of its nodes has CPUs.")
        if len(set(self.cpus)) < len(self.cpus):
            raise ValueError("A CPU belongs to one node of a machine only.")

    @property
    def cpus(self) -> tuple[int, ...]:
        """All CPUs, so that those next to each other share as much as they can."""
        return tuple(cpu for node in self.nodes for cpu in node.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The facts of one host that the plan depends on."""

    # The CPUs and NUMA nodes that instances may use there.
    machine: Machine
    # Two TCP ports that no process listens on there: for instance 0 of a job, and for
    # its links to others.
    free_port: int
    links_port: int
    # The directory in which instances run there, unless they have one of their own.
    cwd: FilePath
    # The folder of poprun's sitecustomize there.
    interpreter: FilePath = ""
    # The kernel's limits of argv and environment follow from these.
    page_bytes: int = 4096
    stack_limit: Limit = 8 << 20
    # The signals that instances begin with as ignored.
    ignored_signals: tuple[int, ...] = ()
    # The CPU time that its cgroups grant, in CPUs; None without a limit.
    cpu_quota: float | None = None
    # Their soft limit of open files; 0 if it is the hard one.
    open_files: int = 0
    # The environment of the host's agent: its instances begin with it. None for
    # poprun's own host: there they begin with poprun's environment.
    environ: Mapping[str, str] | None = None
    # Its address for the other hosts of the job, and the network of this address; "" if
    # they are unknown or there are no other hosts.
    address: Address = ""
    network: str = ""
    # All its addresses, where there are others.
    addresses: tuple[Address, ...] = ()
    # Where the job's directory can be there; not of the host that poprun runs on.
    directory_places: tuple[FilePath, ...] = ()

    @property
    def num_usable_cpus(self) -> int:
        """The number of CPUs that the mask and the cgroups grant, at least 1."""
        num_cpus = len(self.machine.cpus)
        if self.cpu_quota is None:
            return num_cpus
        return min(num_cpus, max(1, int(self.cpu_quota)))

    @property
    def is_own_host(self) -> bool:
        """Whether poprun runs on this host."""
        return self.environ is None


def parse_ranges(text: str) -> tuple[int, ...] | None:
    """Return the numbers in a text of the kernel's, or of format_ranges: 0-3,8.

    Return None for a text that is not such a list.
    """
    ranges = text.strip().split(",") if text.strip() else []
    cpus: set[int] = set()
    for part in ranges:
        if not (match := re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)):
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return None
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))
