"""The values of this package: an mpirun, its arguments, and why it has ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

OPENMPI4 = "openmpi4"
OPENMPI5 = "openmpi5"
HYDRA = "hydra"
# No MPI at all: poprun's own launcher.
LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpi:
    """An mpirun that was found, and which MPI it belongs to."""

    path: str
    flavour: str
    vendor: str
    version: str
    # The library that programs of this mpirun load; None if it is not where it
    # usually is.
    libmpi: str | None = None
    # What always follows path, before any other argument.
    leading_arguments: Sequence[str] = ()

    @property
    def has_mpi(self) -> bool:
        """Whether the instances get an MPI."""
        return self.flavour != LOCAL

    @property
    def title(self) -> str:
        return f"{self.vendor} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpirunArguments:
    """The arguments for mpirun: of the whole job, of each instance or of one."""

    tag_output: bool = False
    timestamp_output: bool = False
    xml: bool = False
    merge_stderr: bool = False
    output_filename: str | None = None
    # The files of output_filename are all there is: no copy on the console.
    output_nocopy: bool = False
    # Print where the instances run and what they are bound to.
    show_instances: bool = False
    allow_run_as_root: bool = False
    # A value of --process-placement that does what --bind-to asked for.
    placement: str | None = None
    npernode: int | None = None
    # The directory that instances run in; None for the caller's.
    wdir: str | None = None
    # In the order given; None stands for the value that the caller has. NAME* stands
    # for all variables of the caller whose names begin so.
    exports: Mapping[str, str | None] = field(default_factory=dict)
    passed_on: Sequence[str] = ()
    # Sentences for the user: what was understood and has no effect here.
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One instance, as mpirun starts it."""

    # What it runs: its shim.
    argv: Sequence[str]
    # None stands for a name that is set in the caller's environment: mpirun warns
    # about others.
    exports: Mapping[str, str | None] = field(default_factory=dict)
    passed_on: Sequence[str] = ()
    # The host to start it on; None for the one that mpirun runs on, in a job that has
    # no other.
    host: str | None = None


class Failure(Enum):
    """What mpirun gives as its reason for a code other than 0."""

    NONE = "nothing failed"
    ABORTED = "an instance called MPI_Abort"
    NOT_FINALIZED = "an instance ended without MPI_Finalize"
    PROXY_LOST = "a process by which mpirun starts others was killed"
    # Only where it was killed itself: PROXY_LOST may also follow from a killed shim.
    DAEMON_LOST = "a daemon of mpirun on another host was killed"
    OTHER = "mpirun gave another reason, which its output shows"
    UNEXPLAINED = "mpirun gave no reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiVerdict:
    """Why mpirun has ended, by its exit code and messages."""

    failure: Failure
    rank: int | None = None
    # Of MPI_Abort the whole error code, if it is known: the exit code is its last byte.
    code: int | None = None
    # mpirun's messages, fit for a terminal.
    text: str = ""
    # What mends it where mpirun has started no instance, if that is known.
    hint: str = ""
    # What it means that mpirun ends with code 0 while instances run.
    if_running: Failure = Failure.UNEXPLAINED
