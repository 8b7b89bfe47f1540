"""The facts of hosts, what a job asks for, and the plan of one attempt to run it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from popdist import environment as env
from poprun.helpers.helper_commands import PYTHON
from poprun.host_specs import HostSpec, name_for_mpirun
from poprun.mpirun.values import Context, Mpi, MpirunArguments
from poprun.options.programs import Program
from poprun.output.output_files import OutputFolder
from poprun.output.stdin import Stdin
from poprun.plan.host_facts import HostFacts
from poprun.plan.placement import Binding
from poprun.plan.topology import Topology
from poprun.vipu.launch.values import PartitionOptions

NOT_ELASTIC = (
    "The job cannot go on without lost instances, because it was started without "
    "--min-instances. Start it with --mpirun local --min-instances M."
)

Describe = Callable[[Sequence[HostSpec]], Sequence[HostFacts]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServers:
    """The host servers of a V-IPU cluster: each is for as many IPUs as another."""

    names: Sequence[str]
    ipus_per_host: int


# Gets the options for the partition of a job, poprun's environment and the job's number
# of IPUs; returns None where the host servers of its cluster are not known.
FindHostServers = Callable[
    [PartitionOptions, Mapping[str, str], int], HostServers | None
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The number, names and secrets of one attempt to run a job."""

    number: int
    # How many of the attempts before it have failed: a growth is no failure.
    num_failures: int
    # Names its directories and its shims, for all to read.
    name: str
    # The address and the key of its control socket, and its arenas: secrets, which are
    # never in argv.
    control: str
    arena: str
    # TCP ports that no process listens on, for rank 0: for the store of torch, and for
    # the links between hosts without MPI.
    master_port: int
    links_port: int
    # The secret of these links: it proves that an instance belongs to the job.
    links_key: str


def new_attempt(
    identity: str, number: int, first: HostFacts, num_failures: int = 0
) -> Attempt:
    """Return an attempt of a job with new names and secrets.

    Args:
        identity: The id of the job.
        number: 0 for the first attempt.
        first: The facts of the host of rank 0, read for this attempt.
        num_failures: How many of the attempts before it have failed.
    """
    return Attempt(
        number=number,
        num_failures=num_failures,
        name=f"{identity}.{number}",
        control=f"@poprun-{os.urandom(8).hex()}/{os.urandom(16).hex()}",
        arena=os.urandom(16).hex(),
        master_port=first.free_port,
        links_port=first.links_port,
        links_key=os.urandom(16).hex(),
    )


def new_generation(attempt: Attempt, links_port: int, store_port: int) -> Attempt:
    """Return an attempt with other secrets, for members that meet again in it."""
    return replace(
        attempt,
        arena=os.urandom(16).hex(),
        links_key=os.urandom(16).hex(),
        links_port=links_port,
        master_port=store_port,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVariables:
    """The facts of a job's V-IPU partition that its instances' variables have."""

    options: PartitionOptions
    name: str
    # The parent device, if the partition is reconfigurable: it has no GCDs then.
    node_device: int | None = None
    # V-IPU's report; None before V-IPU is asked: then the likely ones are used.
    target_options: Mapping[str, str] | None = None
    # How many ILDs it has; None before V-IPU is asked.
    num_ilds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One instance: its program, where it runs, and its variables."""

    rank: int
    program: Program
    host: HostSpec
    facts: HostFacts
    binding: Binding = field(default_factory=Binding)
    # The absolute path of the directory that the user names; None for the current
    # directory of its host.
    directory: str | None = None
    # How many threads it may start; None if the caller has set the number.
    threads: int | None = None
    # The arguments for mpirun of this instance alone.
    passed_on: Sequence[str] = ()
    # The variables of -x and --env.
    exports: Mapping[str, str] = field(default_factory=dict)
    # The variables on mpirun's command line, in the original's order, and those that
    # are added to the caller's environment, `printed` included. Plans have them.
    printed: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def cwd(self) -> str:
        """The absolute path of the directory that it runs in."""
        return self.directory or self.facts.cwd


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job that could start if it had its IPUs: nothing is reserved for it yet."""

    # The id of the job, for all to read.
    identity: str
    topology: Topology
    programs: Sequence[Program]
    # The hosts with their users and slots, and the facts that were read on each.
    hosts: Sequence[HostSpec]
    facts: Sequence[HostFacts]
    mpi: Mpi
    # The instances in rank order, without the variables that a plan adds.
    assignments: Sequence[Assignment]
    # The arguments for mpirun of the whole job.
    arguments: MpirunArguments = field(default_factory=MpirunArguments)
    stdin: Stdin = field(default_factory=Stdin)
    # Where the output of the instances is written to files, if anywhere.
    output_folder: OutputFolder | None = None
    # The directory of executables that instances compile and share, and whether it is
    # made for this job.
    cache_path: str | None = None
    cache_is_temporary: bool = False
    target_options: Mapping[str, str] = field(default_factory=dict)
    # The variables of each instance that follow from options and from the MPI.
    settings_variables: Mapping[str, str] = field(default_factory=dict)
    # The variables that mpirun is told to forward, as the caller has them.
    forwarded: Sequence[str] = ()
    # None for a job without IPUs; and how many partitions it has had before.
    partition_options: PartitionOptions | None = None
    partition_number: int = 0
    # Whether the user asks for IPUs: otherwise the job may run without any.
    needs_ipus: bool = False
    notes: Sequence[str] = ()
    # Why the job stops when an instance is lost; "" if the others go on as long as so
    # many are left, on so many hosts, and how many it may have at most.
    reform_refusal: str = NOT_ELASTIC
    least_instances: int = 1
    most_instances: float = inf
    least_hosts: int = 1
    # The network between the hosts that MPI uses, "" if it is not known.
    subnet: str = ""

    @property
    def names_hosts(self) -> bool:
        """Whether there are other hosts: mpirun is told where to start instances."""
        return not all(facts.is_own_host for facts in self.facts)

    def with_files_of(self, other: "Request") -> "Request":
        """Return this request with the files that all attempts of a job share."""
        return replace(
            self,
            output_folder=other.output_folder,
            cache_path=other.cache_path,
            cache_is_temporary=other.cache_is_temporary,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One attempt to run a job, before anything is started."""

    request: Request
    attempt: Attempt
    # None if it runs without IPUs.
    partition: PartitionVariables | None
    # The topology of the request, but with the number of ILDs of the partition.
    topology: Topology
    assignments: Sequence[Assignment]

    @property
    def argv(self) -> list[str]:
        """mpirun's command line. It sets no variables: each shim is sent them."""
        contexts = [replace(context, exports={}) for context in self.contexts()]
        return self.request.mpi.command(self.request.arguments, contexts)

    def printed_argv(self) -> list[str]:
        """Return mpirun's command line in the original's form.

        It has the variables, and each program after the shim that starts it.
        """
        contexts = self.contexts(with_programs=True)
        return self.request.mpi.command(self.request.arguments, contexts)

    def contexts(self, *, with_programs: bool = False) -> list[Context]:
        """Return each instance as it stands in mpirun's command line."""
        shim = (*PYTHON, "shim", self.attempt.name, env.CONTROL)
        contexts = []
        for assignment in self.assignments:
            program = assignment.program.argv if with_programs else ()
            host = name_for_mpirun(assignment.host)
            contexts.append(
                Context(
                    argv=[*shim, str(assignment.rank), *program],
                    exports=self._exports(assignment),
                    passed_on=assignment.passed_on,
                    host=host if self.request.names_hosts else None,
                )
            )
        return contexts

    def _exports(self, assignment: Assignment) -> dict[str, str | None]:
        """Return the variables of an instance in mpirun's argv; None: forwarded.

        The original has the forwarded variables after the instance's and before
        Poplar's. The variables that only poprun has come last.
        """
        forwards = dict.fromkeys(self.request.forwarded)
        exports: dict[str, str | None] = {}
        for name, value in assignment.printed.items():
            if name in (env.POPLAR_TARGET_OPTIONS, env.CONTRACT):
                exports |= forwards
            exports[name] = value
        return exports
