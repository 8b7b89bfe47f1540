"""The events of a job, from its hosts and mpirun to the supervisor and its listeners.

They emit them, stopping decides by them, the report and the log show them. An event
without fields of its own is no dataclass, because its base has all that it needs: it
takes a millisecond to make one.
"""

from dataclasses import dataclass

from poprun.wire.field_types import Long, WaitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has happened to a job."""


class HostEvent(Event):
    """Something that has happened on a host. All other events are poprun's own."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEvent(HostEvent):
    """Something that has happened to an instance."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MpirunStarted(Event):
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MpirunExited(Event):
    """mpirun itself ended, with a status of waitpid."""

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


class Connected(InstanceEvent):
    """The shim of an instance has connected."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(InstanceEvent):
    """A program runs, on these CPUs as far as the kernel knows."""

    pid: int
    cpus: tuple[int, ...] = ()
    # True also where no binding was requested.
    memory_is_bound: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(InstanceEvent):
    """The kernel would not run the program: an errno, and what it was about.

    `call` is the call of the supervisor's own that failed, if it did not come so far.
    """

    errno: int
    tried: str
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited(InstanceEvent):
    """A program ended, with a status of waitpid, at a time on poprun's clock."""

    status: WaitStatus
    at_ns: Long
    user_s: float
    system_s: float
    peak_kib: Long
    # False if a signal of poprun's or of mpirun's was on its way to it before.
    by_itself: bool
    # Whether the kernel has killed it at its limit of CPU time.
    at_cpu_limit: bool = False
    # Whether it is a Python that a fault has ended, without output of faulthandler.
    lacks_faulthandler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedInFinalize(InstanceEvent):
    """A program has failed, and waits in MPI_Finalize for the other instances.

    The status is the one that waitpid would give.
    """

    status: WaitStatus
    at_ns: Long


class WaitsInFinalize(InstanceEvent):
    """A program has waited long in MPI_Finalize; whether it failed is not known."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean(InstanceEvent):
    """Nothing of an instance is left; so many processes had to be ended."""

    left_behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains(HostEvent):
    """A process of the job lives on, because poprun's user may not signal it."""

    pid: int
    user: Long
    command: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotUndone(HostEvent):
    """An end action has failed: a sentence about it."""

    sentence: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedAgain(Event):
    """The program of an instance that was lost is being started again."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChanged(Event):
    """The instances have re-formed.

    members: The instances of the new generation; lost and added: what has changed.
    why: A sentence.
    seconds: The time from the first loss, or from the first request, to the generation.
    """

    generation: int
    members: tuple[int, ...]
    lost: tuple[int, ...]
    added: tuple[int, ...]
    why: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJoins(Event):
    """A host has come while the instances run on; these instances are started there.

    They are new ones, or those of a lost host.
    """

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLeaves(Event):
    """The instances of a host are to leave the job, which goes on without them.

    why: A clause.
    """

    host: str
    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsAvailable(Event):
    """An elastic job is to start again on other hosts.

    They have room for more instances, or some of its own are to leave.

    Attributes:
        hosts: All that can be used, each as parse_hosts() reads it.
        new_hosts: The names of those that the job does not use.
        num_running: How many instances the job has.
        num_instances: How many it has room for.
        dropped: Why hosts of the job are to leave, as a clause; "" if none are.
    """

    hosts: tuple[str, ...]
    new_hosts: tuple[str, ...]
    num_running: int
    num_instances: int
    dropped: str = ""

    @property
    def why(self) -> str:
        """Why the job has other hosts, as a clause."""
        if not self.new_hosts:
            return self.dropped or "its hosts have more slots"
        noun = "host" if len(self.new_hosts) == 1 else "hosts"
        can_be_used = f"the {noun} {', '.join(self.new_hosts)} can be used"
        return " and ".join(filter(None, (self.dropped, can_be_used)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLost(Event):
    """The job does not hold its IPUs any more: a sentence about it."""

    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost(Event):
    """A host is not reached any more, and why; these instances were on it.

    Attributes:
        may_run: Whether they may run on, until they have lost poprun for 15 s.
    """

    host: str
    ranks: tuple[int, ...]
    why: str
    may_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimLost(InstanceEvent):
    """A shim ended without a report, and its program with it.

    is_final: Whether nothing can start another one.
    """

    is_final: bool = False


class Orphaned(InstanceEvent):
    """The process of mpirun that had started a shim has died."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonKilled(HostEvent):
    """A process of mpirun's on another host was killed, and not by poprun."""

    host: str


class ShimLeft(InstanceEvent):
    """A shim ended after its release."""

    __slots__ = ()


class AloneInMpi(InstanceEvent):
    """One of several instances uses an MPI in which it is the only rank."""

    __slots__ = ()


class TorchGroupsMade(InstanceEvent):
    """A process of an instance has made process groups of torch.distributed."""

    __slots__ = ()


class CanReform(InstanceEvent):
    """A process of an instance can form its groups anew without lost instances."""

    __slots__ = ()


class ReformEnded(InstanceEvent):
    """The process that can re-form has ended, and perhaps the instance with it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReformAsked(InstanceEvent):
    """An instance leaves a generation, and waits for the next one.

    links_port, store_port: TCP ports that no process of its host listens on.
    silent: The instances on hosts that have not answered it.
    """

    generation: int
    links_port: int
    store_port: int
    silent: tuple[int, ...] = ()


class DebuggerReady(InstanceEvent):
    """A Python of an instance has read that --pdb is for it."""

    __slots__ = ()


class PromptShown(InstanceEvent):
    """The debugger of an instance waits for a command."""

    __slots__ = ()


class PromptOver(InstanceEvent):
    """It waits for none any more."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(HostEvent):
    """A connection to the control socket was closed, and why."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptFailed(HostEvent):
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


class SlurmEndsJob(HostEvent):
    """Slurm has sent SIGTERM to all processes of its job on a host."""

    __slots__ = ()


class OutputClosed(Event):
    """The reader of poprun's stdout has closed it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageMeasured(InstanceEvent):
    """The usage of the processes of an instance, and its current collective.

    cpu_s and memory_kib: The CPU time so far, and the resident memory.
    num_groups, num_calls, total_bytes: The groups that it is in; its calls in them so
        far, and the bytes of all.
    operation, call_bytes: The call that it is in; "" and 0 outside of one.
    waited_s, missing: How long it has waited for other instances in that call, and the
        instances that have not begun it.
    group, number, members: With torch's gloo, the group, the number of the call, and
        the instances of the group. It is not known here which of them are missing.
    group_calls: By group, in pairs, how many calls it has begun there.
    """

    cpu_s: float
    memory_kib: Long
    num_processes: int
    num_groups: int = 0
    num_calls: Long = 0
    total_bytes: Long = 0
    operation: str = ""
    call_bytes: Long = 0
    waited_s: float = 0.0
    missing: tuple[int, ...] = ()
    group: int = 0
    number: Long = 0
    members: tuple[int, ...] = ()
    group_calls: tuple[int, ...] = ()


class AllMeasured(Event):
    """All hosts have had the time to measure what their instances use."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksAvailable(InstanceEvent):
    """These processes of an instance can show Python stacks, its program first."""

    pids: tuple[int, ...]


class StacksShown(Event):
    """The instances have shown their Python stacks."""

    __slots__ = ()


class Tick(Event):
    """Time has passed."""

    __slots__ = ()
