"""The description of a job to supervise."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from poprun.errors import LaunchError
from poprun.helpers.end_actions import EndAction, RemovePath
from poprun.output.routes import Routes
from poprun.output.stdin import Stdin
from poprun.output.terminal import Terminals
from poprun.plan.values import NOT_ELASTIC
from poprun.vipu.launch.held_devices import HeldDevices
from poprun.vipu.launch.values import InstanceDevices

ENDED_FILE = "ended-instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something that is made for a job or for one attempt, with the action to undo it.

    The end action is registered before `make` is called, and is performed however the
    job ends, even if `make` has failed or has not been called.
    """

    make: Callable[[], None]
    end_action: EndAction
    # Does the same as the end action, faster, once all instances have ended; returns
    # whether that is done. None if only the end action can.
    undo: Callable[[], bool] | None = None


def directory_resource(path: str, *, exists: bool = False) -> Resource:
    """Return a directory of a job as a resource."""

    def make() -> None:
        if exists:
            return
        try:
            os.mkdir(path, mode=0o700)
        except OSError as error:
            raise LaunchError(
                f"The job's directory {path} cannot be made: {error.strerror}. Set "
                "TMPDIR to a directory with room for files."
            ) from None

    return Resource(make=make, end_action=RemovePath(os.fsencode(path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonJob:
    """The facts about an attempt that are the same for poprun and for all hosts."""

    # The address and the key of the control socket.
    control: str
    # NAME=VALUE in the environment of every process of the job.
    mark: str
    grace: float = 5.0
    # Whether mpirun gives the instances an MPI: the local launcher does not.
    has_mpi: bool = True
    # The attempt's directory, the first of its resources; "" for none.
    directory: str = ""
    # The prefixes of the paths of files that MPI may leave in shared directories.
    leftovers: Sequence[str] = ()
    # Whether its processes record their calls in the attempt's directory.
    is_traced: bool = False

    def ended_file(self, generation: int = 0) -> str:
        """Return the file in which instances read who has ended, "" without one.

        Args:
            generation: The members of an elastic job have others from 1 on.
        """
        name = f"{ENDED_FILE}-{generation}" if generation else ENDED_FILE
        return os.path.join(self.directory, name) if self.directory else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJob(CommonJob):
    """The part of an attempt that runs on one host."""

    # The host, as messages name it, and its instances.
    name: str
    ranks: Sequence[int]
    num_instances: int
    # The cache that is removed with the attempt, "" if the job uses a shared one.
    cache: str
    # Whether stderr of the instances is their stdout.
    merge_stderr: bool
    # To which instances poprun sends an input.
    stdin_ranks: Sequence[int]
    # The variables that mpirun's daemons get there, besides the host's own.
    environment: Mapping[str, str]
    # None for a job without IPUs.
    devices: InstanceDevices | None = None
    # The function of poprun.launch in base64, "" for a program.
    call: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(CommonJob):
    """All that is needed to start one attempt of a job."""

    mpirun: Sequence[str]
    mpirun_environment: Mapping[bytes, bytes]
    # The SPEC message of each instance, in rank order.
    specs: Sequence[bytes]
    # The host of each instance.
    host_names: Sequence[str]
    # The caller's soft and hard limit of open files: what the instances get.
    descriptor_limits: tuple[int, int]
    stdin: Stdin = field(default_factory=Stdin)
    # How the instances' output is marked, and where it is shown.
    routes: Routes = field(default_factory=Routes)
    terminals: Terminals = field(default_factory=Terminals)
    keep_going: bool = False
    timeout: float = inf
    # How much of it the attempts before this one have taken.
    timeout_used: float = 0.0
    start_timeout: float = inf
    # Why the job stops when an instance is lost; "" if the others may go on as long as
    # at least so many are left, on so many hosts, how many there may be at most, and
    # how many may be started again then.
    reform_refusal: str = NOT_ELASTIC
    least_instances: int = 1
    most_instances: float = inf
    least_hosts: int = 1
    restarts_left: int = 0
    # Whether Slurm may send SIGTERM to all its processes.
    is_in_slurm: bool = False
    # The resources of this attempt alone, in this order; undone in the opposite order.
    attempt_resources: Sequence[Resource] = ()
    # The resources that all attempts share, undone after the last: IPUs, the cache.
    job_resources: Sequence[Resource] = ()
    # The IPUs of the job, None if it runs without.
    devices: HeldDevices | None = None
