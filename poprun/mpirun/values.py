"""An mpirun: how it is called, its arguments, and why it has ended."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from poprun.mpirun.environment import without_batch_system, without_outer_mpi

# Open MPI 5 ends some messages with a NUL; escapes have no place in a report.
_UNPRINTABLE = dict.fromkeys([*range(0x09), *range(0x0B, 0x20), 0x7F])


@dataclass(frozen=True, slots=True, kw_only=True)
class MpirunArguments:
    """The arguments for mpirun: of the whole job, of each instance or of one."""

    tag_output: bool = False
    timestamp_output: bool = False
    xml: bool = False
    merge_stderr: bool = False
    output_filename: str | None = None
    # The output goes to the files of output_filename only, not to the console.
    output_nocopy: bool = False
    # Print the host and the binding of each instance.
    show_instances: bool = False
    allow_run_as_root: bool = False
    # The value of --process-placement that corresponds to --bind-to.
    placement: str | None = None
    npernode: int | None = None
    # When a process fails after all have connected, the others go on. Only poprun's
    # own launcher does that.
    survives: bool = False
    # The instances' working directory; None for the caller's.
    wdir: str | None = None
    # In the order given; None stands for the caller's value. NAME* stands for all
    # variables of the caller that begin with NAME.
    exports: Mapping[str, str | None] = field(default_factory=dict)
    passed_on: Sequence[str] = ()
    # Sentences for the user about arguments that have no effect here.
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One instance, as mpirun starts it."""

    # The argv of its shim.
    argv: Sequence[str]
    # None stands for a name that is set in the caller's environment: mpirun warns
    # about others.
    exports: Mapping[str, str | None] = field(default_factory=dict)
    passed_on: Sequence[str] = ()
    # The host to start it on; None in a job on mpirun's own host only.
    host: str | None = None


class MpirunFailure(Enum):
    """The reason that mpirun gives for a code other than 0."""

    NONE = "nothing failed"
    ABORTED = "an instance called MPI_Abort"
    NOT_FINALIZED = "an instance ended without MPI_Finalize"
    PROXY_LOST = "a process by which mpirun starts others was killed"
    # Only where it was killed itself: PROXY_LOST may also follow from a killed shim.
    DAEMON_LOST = "a daemon of mpirun on another host was killed"
    OTHER = "mpirun gave another reason, which its output shows"
    UNEXPLAINED = "mpirun gave no reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpirunReport:
    """Why mpirun has ended, by its exit code and messages."""

    failure: MpirunFailure
    rank: int | None = None
    # The exit code; after MPI_Abort the whole error code, if it is known.
    code: int | None = None
    # mpirun's messages, without unprintable characters.
    text: str = ""
    # Advice for an mpirun that has started no instance, if there is any.
    hint: str = ""
    # The failure if mpirun has ended with code 0 while instances run.
    if_running: MpirunFailure = MpirunFailure.UNEXPLAINED


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpi:
    """An mpirun on this host. Each MPI has its own subclass."""

    path: str
    version: str
    # The library that programs of this mpirun load; None if it is not in a usual place.
    libmpi: str | None = None

    vendor: ClassVar[str]
    # The name of its launcher in messages about arguments.
    launcher: ClassVar[str]
    # A pattern of the answer to --version, with the version as its group.
    version_pattern: ClassVar[str] = ""
    # The names under which programs load the library.
    libraries: ClassVar[Sequence[str]] = ()
    # The instances get an MPI.
    has_mpi: ClassVar[bool] = True
    # MPI_Init fails for a user who has no home directory.
    needs_home: ClassVar[bool] = False
    # mpirun gets the options that poprun does not know.
    takes_any_option: ClassVar[bool] = False
    # The options that set one of its parameters.
    parameter_options: ClassVar[Sequence[str]] = ()
    # Variables for mpirun, unless the caller has set them. The second ones get the
    # directory of the job as their value.
    defaults: ClassVar[Mapping[str, str]] = {}
    directory_variables: ClassVar[Sequence[str]] = ()
    # Variables for an mpirun that starts daemons on other hosts. The second ones get
    # the network between the hosts as their value.
    remote_variables: ClassVar[Mapping[str, str]] = {}
    network_variables: ClassVar[Sequence[str]] = ()
    # The prefixes of paths of files that stay when processes are killed, because no
    # setting moves them to a directory of the job. The job's name is not in them.
    leftovers: ClassVar[Sequence[str]] = ()
    # A pattern of the paths of shared memory that stays then.
    segment_pattern: ClassVar[str] = ""
    # Patterns of its messages with their meanings; the first one that matches counts.
    # The groups `rank` and `code` are an instance and its error code.
    messages: ClassVar[Sequence[tuple[str, MpirunFailure]]] = ()

    @property
    def title(self) -> str:
        return f"{self.vendor} {self.version}"

    def command(
        self, arguments: MpirunArguments, contexts: Sequence[Context]
    ) -> list[str]:
        """Return the command that starts each context as one process.

        mpirun --bind-to none --tag-output -np 1 -x A=0 shim 0 : -np 1 -x A=1 shim 1
        """
        hosts = Counter(each.host for each in contexts if each.host is not None)
        argv = [self.path, *self.job_arguments(arguments, hosts)]
        for context in contexts:
            argv += [*self.instance_arguments(context), *context.argv, ":"]
        return argv[:-1]

    def job_arguments(
        self, arguments: MpirunArguments, hosts: Mapping[str, int]
    ) -> list[str]:
        """Return mpirun's arguments for the whole job.

        Args:
            hosts: The number of instances of each host; empty in a job on this host.
        """
        raise NotImplementedError

    def instance_arguments(self, context: Context) -> list[str]:
        """Return mpirun's arguments before the argv of one instance."""
        raise NotImplementedError

    def environment(self, caller: Mapping[str, str], directory: str) -> dict[str, str]:
        """Return mpirun's own environment.

        Args:
            directory: It is removed with the job. Shared memory lives in it, so memory
                is better for it than a disk.
        """
        own = dict.fromkeys(self.directory_variables, directory) | dict(self.defaults)
        caller = without_batch_system(without_outer_mpi(caller))
        return own | caller | {"TMPDIR": directory}

    def remote_environment(self, subnet: str) -> dict[str, str]:
        """Return the variables for an mpirun that starts processes on other hosts.

        Args:
            subnet: The network between the hosts, "" if it is not known.
        """
        networks = self.network_variables if subnet else ()
        return {**self.remote_variables, **dict.fromkeys(networks, subnet)}

    def explain(self, text: str, exit_code: int) -> MpirunReport:
        """Return the reason that mpirun gives for its exit code."""
        text = text.translate(_UNPRINTABLE).strip()
        failure = MpirunFailure.UNEXPLAINED if exit_code else MpirunFailure.NONE
        groups: dict[str, str] = {}
        for pattern, meaning in self.messages:
            if match := re.search(pattern, text):
                failure, groups = meaning, match.groupdict()
                break
        rank = int(groups["rank"]) if "rank" in groups else None
        code = int(groups.get("code", exit_code))
        return MpirunReport(failure=failure, rank=rank, code=code, text=text)

    def explain_abort(
        self, report: MpirunReport, stderr: Iterable[tuple[int, str]]
    ) -> MpirunReport:
        """Return a report with the reason of MPI_Abort that only an instance prints.

        Args:
            stderr: The rank of each instance, and the end of its stderr.
        """
        del stderr
        return report
