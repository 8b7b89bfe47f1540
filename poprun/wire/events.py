"""The events of a job, from its hosts and mpirun to the supervisor and its listeners.

They emit them, stopping decides by them, the report and the log show them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has happened to a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpirunStarted(Event):
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MpirunExited(Event):
    """mpirun itself ended; the status is that of waitpid."""

    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MpirunRefused(Event):
    """mpirun could not be started: an errno, and the guard's call if one failed."""

    errno: int
    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLost(Event):
    """The guard died; another takes its place."""

    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected(Event):
    """The shim of an instance has connected."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """A program runs, on these CPUs as far as the kernel knows."""

    rank: int
    pid: int
    cpus: tuple[int, ...] = ()
    # As asked for, if it was.
    memory_is_bound: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """The kernel would not run the program: an errno, and what it was about.

    `call` is the call of the supervisor's own that failed, if it did not come so far.
    """

    rank: int
    errno: int
    tried: str
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited(Event):
    """A program ended; the status is that of waitpid, the time on poprun's clock."""

    rank: int
    status: int
    at_ns: int
    user_s: float
    system_s: float
    peak_kib: int
    # False if a signal of poprun's or of mpirun's was on its way to it before.
    by_itself: bool
    # Whether the kernel has killed it at its limit of CPU time.
    at_cpu_limit: bool = False
    # Whether it is a Python that a fault has ended, without output of faulthandler.
    lacks_faulthandler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedInFinalize(Event):
    """A program has failed, and waits in MPI_Finalize for the other instances.

    The status is the one that waitpid would give.
    """

    rank: int
    status: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsInFinalize(Event):
    """A program has waited long in MPI_Finalize; whether it failed is not known."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean(Event):
    """Nothing of an instance is left; so many processes had to be ended."""

    rank: int
    left_behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains(Event):
    """A process of the job lives on, because poprun's user may not signal it."""

    pid: int
    user: int
    command: str
    host: str

    @classmethod
    def read(cls, fields: list[bytes], host: str) -> "Remains":
        """Return what a message of this kind says."""
        command = fields[2].decode(errors="backslashreplace")
        return cls(pid=int(fields[0]), user=int(fields[1]), command=command, host=host)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotUndone(Event):
    """An end action has failed: a sentence about it."""

    sentence: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLost(Event):
    """The job does not hold its IPUs any more: a sentence about it."""

    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost(Event):
    """A host is not reached any more, and why; these instances were on it."""

    host: str
    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimLost(Event):
    """A shim ended without a report, and its program with it."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphaned(Event):
    """The process of mpirun that had started a shim has died."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonKilled(Event):
    """A process of mpirun's on another host was killed, and not by poprun."""

    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimLeft(Event):
    """A shim ended after its release."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneInMpi(Event):
    """One of several instances uses an MPI in which it is the only rank."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchGroupsMade(Event):
    """A process of an instance has made process groups of torch.distributed."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DebuggerReady(Event):
    """A Python of an instance has read that --pdb is for it."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShown(Event):
    """The debugger of an instance waits for a command."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOver(Event):
    """It waits for none any more."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(Event):
    """A connection to the control socket was closed, and why."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptFailed(Event):
    """A connection to the control socket cannot be accepted at the moment."""

    errno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted(Event):
    """poprun got a signal that ends the job, or a client asks for the same."""

    signal: int
    # The client, as messages name it; "" for a signal.
    client: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebuggerInterrupted(Event):
    """Ctrl-C is for the debugger of an instance."""

    rank: int
    at_prompt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmEndsJob(Event):
    """Slurm has sent SIGTERM to all processes of its job on a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputClosed(Event):
    """The reader of poprun's stdout has closed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageMeasured(Event):
    """What the processes of an instance use, and which collective it is in.

    cpu_s and memory_kib: The CPU time so far, and the resident memory.
    num_groups, num_calls, total_bytes: The groups that it is in; its calls in them so
        far, and the bytes of all.
    operation, call_bytes: The call that it is in; "" and 0 outside of one.
    waited_s, missing: For how long it has waited for others in that, and which have not
        begun it.
    group, number, members: With torch's gloo, for which call of which group that is,
        and the instances of the group. It is not known here which are missing.
    group_calls: By group, in pairs, how many calls it has begun there.
    """

    rank: int
    cpu_s: float
    memory_kib: int
    num_processes: int
    num_groups: int = 0
    num_calls: int = 0
    total_bytes: int = 0
    operation: str = ""
    call_bytes: int = 0
    waited_s: float = 0.0
    missing: tuple[int, ...] = ()
    group: int = 0
    number: int = 0
    members: tuple[int, ...] = ()
    group_calls: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllMeasured(Event):
    """All hosts have had the time to measure what their instances use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksAvailable(Event):
    """These processes of an instance can show Python stacks, its program first."""

    rank: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksShown(Event):
    """The instances have shown their Python stacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed."""
