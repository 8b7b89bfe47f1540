"""Leases and their holders as frozen values, and when a holder counts as dead.

Whether a holder lives is decided by what can be known of it:

- a process of this boot and this pid namespace lives as long as the kernel has a
  process of its number and start time that is no zombie, however long its lease;
- a process of this host under another boot is dead, if it is the holder's own;
- any other process (of another host, of another container) lives until its lease
  ends, so its owner renews that.

None can see from here whether instances on other hosts live. So the lease of a job that
has some lives until it ends, even if its holder is dead.
"""

from dataclasses import dataclass
from enum import Enum, auto

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.model import Partition, PartitionRequest
from poprun.vipu.rules.numbering import Device

# The parent device, where the child devices are numbered from 0: its process is the
# guard of the job, with which the lease lives on if poprun is killed.
PARENT = -1
# Instances on a host that has lost poprun end within 15 s.
CUT_OFF_S = 16.0
# No Linux kernel gives a higher process number.
MOST_PID = 4 << 20
DEFAULT_LEASE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process; its values together are never reused."""

    pid: int
    # In clock ticks since boot, as /proc/PID/stat has it in no time namespace.
    start_time: int
    boot_id: str
    pid_namespace: str


class Life(Enum):
    """The life of a process, as far as this one can see it."""

    ALIVE = auto()
    DEAD = auto()
    UNKNOWN = auto()  # it is out of sight: only the time of its lease counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that holds IPUs: its user and host, and the process that decides."""

    user: str
    job: str
    host: str
    process: ProcessIdentity

    def __str__(self) -> str:
        return f"user {self.user}, job {self.job}, host {self.host}"


def check_process(process: ProcessIdentity) -> None:
    """Check the numbers of a process, which the kernel is asked with.

    Raises:
        VipuRuleError: No kernel gives such numbers.
    """
    if not 0 < process.pid <= MOST_PID or process.start_time < 0:
        raise VipuRuleError(
            f"Process {process.pid} with start time {process.start_time} can be none: "
            f"its number is from 1 to {MOST_PID}, and its start time not negative."
        )


def check_holder(holder: Holder) -> None:
    """Check the texts of a holder, which other users see, on terminals too.

    Raises:
        VipuRuleError: It is not printable, or too long, or its process can be none.
    """
    check_process(holder.process)
    texts = {"user": holder.user, "job": holder.job, "host": holder.host}
    for noun, text in texts.items():
        check_text(f"{noun} of a holder", text)


def check_text(noun: str, text: str) -> None:
    """Check a text that is shown to other users.

    Raises:
        VipuRuleError: It is not printable, empty or too long.
    """
    if not 0 < len(text) <= 256 or not text.isprintable():
        raise VipuRuleError(
            f"{text[:64]!r} is not a valid {noun}: use 1 to 256 printable characters."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to IPUs for as long as a job lives."""

    id: str
    holder: Holder
    # Seconds since the epoch, for people.
    since: float
    # For how long it lives without being renewed.
    lease_s: float
    # Whether the job has instances on other hosts, which may outlive its holder.
    spans_hosts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A device of a partition that a lease holds, and the process attached to it."""

    partition: str
    device: Device
    lease: Lease
    # The instance that it is for; None for a parent device.
    child: int | None = None
    process: ProcessIdentity | None = None
    # Where the process runs; None for the holder's host.
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The lease, partition and parent device of a job, and a child per instance."""

    lease: Lease
    partition: Partition
    # Whether the partition was made for this job.
    created: bool
    parent: Device
    children: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job waiting for IPUs."""

    holder: Holder
    num_ipus: int
    # The partition that it waits for; empty if one is to be made for it.
    partition: str
    # Seconds since the epoch, for people.
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whether a waiting job is next, and a sentence: why it has to wait."""

    is_next: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """The IPUs that a job wants for itself, all or none.

    On a reconfigurable partition the first free device with enough IPUs becomes the
    parent device, on another the whole partition does.
    """

    holder: Holder
    partition: str
    # One child device for each instance, in rank order.
    num_children: int
    ipus_per_child: int
    # How to make the partition if there is none of this name.
    create: PartitionRequest | None = None
    # Whether a partition that this makes goes when the lease ends.
    remove: bool = True
    # For how long the lease lives without being renewed.
    lease_s: float = DEFAULT_LEASE_S
    # The id of the lease, 32 random hex digits, so that the job can release it even if
    # it never gets an answer; empty to let the inventory draw one.
    lease: str = ""
    # Whether instances run on other hosts than the holder: see `Lease`.
    spans_hosts: bool = False
