"""What the plan has to know of each host: CPUs, a free port, directories, limits."""

from collections.abc import Callable, Sequence

from poprun.plan.hosts import HostSpec
from poprun.plan.placement import Machine
from poprun.record import Record


class HostFacts(Record):
    """What the plan has to know of one host."""

    # The CPUs and NUMA nodes that instances may use there.
    machine: Machine
    # A TCP port that no process listens on there.
    free_port: int
    # The directory in which instances run there, unless they have one of their own;
    # "" if it has been deleted.
    cwd: str
    # The folder of poprun's sitecustomize there.
    interpreter: str = ""
    # What the kernel's limits of argv and environment follow from.
    page_bytes: int = 4096
    stack_limit: int = 8 << 20
    # The signals that instances begin with as ignored.
    ignored_signals: tuple[int, ...] = ()


Describe = Callable[[Sequence[HostSpec]], Sequence[HostFacts]]
