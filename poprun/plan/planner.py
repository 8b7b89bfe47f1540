"""From settings to a plan: everything that has to be known before a job can start.

It looks at the machine, the hosts and the mpirun, and changes nothing. Whatever is
wrong with a request comes up here, as a sentence, with nothing started.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from popdist import environment as env
from poprun.errors import HostError, OptionError, TopologyError
from poprun.helpers.command import PYTHON
from poprun.log import DEBUG
from poprun.mpirun import adapter
from poprun.mpirun.find import find_mpirun
from poprun.mpirun.values import (
    Context,
    GlobalArguments,
    LocalArguments,
    Mpi,
)
from poprun.options.settings import Settings
from poprun.plan import assignments, partition, placement, topology
from poprun.plan.attempt import Attempt, draw
from poprun.plan.host_facts import Describe, HostFacts
from poprun.plan.host_options import check_slots, read_hosts
from poprun.plan.hosts import SLURM_NODE_LIST, HostSpec, from_slurm
from poprun.plan.instance_numbers import check_instance
from poprun.plan.mpi_arguments import (
    GivenArguments,
    find_directories,
    look_up,
    read_arguments,
)
from poprun.plan.stdin_option import read_stdin
from poprun.stdio.stdin import Stdin
from poprun.vipu.launch.values import PartitionOptions

FOR_SEVERAL_HOSTS = (
    "host-subnet",
    "synchronise-python-venv",
    "synchronise-poplar-sdk",
    "distribute-ssh-key",
)


class Setup(NamedTuple):
    """A job that is planned, and not started."""

    # The id of the job, for all to read.
    identity: str
    attempt: Attempt
    mpi: Mpi
    arguments: GlobalArguments
    plan: assignments.Plan
    # What the plan is made from, besides its topology and its bindings.
    request: assignments.Request
    threads: Sequence[int] | None
    facts: Mapping[HostSpec, HostFacts]
    # Each instance in mpirun's argv, with the variables that are only printed.
    contexts: Sequence[Context]
    stdin: Stdin
    # Where instances share what they compile; made at the start, and removed.
    temporary_cache: str | None
    notes: Sequence[str]
    # The directory that the user names for it; made at the start, and kept.
    named_cache: str | None = None
    # What is asked of V-IPU; None for a job without IPUs.
    partition_options: PartitionOptions | None = None
    # Whether the user asks for IPUs: otherwise the job may run without any.
    needs_ipus: bool = False

    @property
    def argv(self) -> list[str]:
        """mpirun's command line. It sets no variables: each shim is sent them."""
        return self._command([one._replace(exports={}) for one in self.contexts])

    @property
    def printed_argv(self) -> list[str]:
        """mpirun's command line in the original's form: with the variables."""
        return self._command(self.contexts)

    def _command(self, contexts: Sequence[Context]) -> list[str]:
        return adapter(self.mpi.flavour).command(
            self.mpi, self.arguments, contexts, as_root=os.geteuid() == 0
        )


def make_setup(
    settings: Settings,
    environ: Mapping[str, str],
    temporary: str,
    describe: Describe,
) -> Setup:
    """Plan a job, and describe all that is needed to start it.

    Args:
        temporary: Where temporary directories are made.
        describe: Returns the facts of each host.

    Raises:
        PoprunError: Something about it makes no sense, or is not there.
    """
    hosts = read_hosts(settings, environ)
    shape = _shape(settings, len(hosts))
    check_slots(hosts, shape)
    mpi = find_mpirun(settings["mpirun"], environ)
    asked = read_arguments(settings, mpi, shape)
    check_instance(settings, "only-output-from-instance", shape.num_instances)

    identity = os.urandom(16).hex()
    facts = describe(hosts)
    # Rank 0 listens on the port, and runs on the first host.
    attempt = draw(identity, 0, facts[0].free_port)
    cache, temporary_cache = _cache(settings, environ, shape, identity, temporary)
    bindings = _bindings(settings, asked.job, shape, facts)
    wish = partition.read_options(settings, environ)
    request = assignments.Request(
        identity=identity,
        hosts=hosts,
        cwds=[host.cwd for host in facts],
        offline=settings.offline,
        attempt=attempt,
        partition=None if wish is None else partition.asked(wish, identity),
        cache_path=cache,
        target_options=given_target_options(environ),
        libmpi=None if env.MPI4PY_LIBMPI in environ else mpi.libmpi,
        log_level=_log_level(settings, environ),
        emulate_sdk=settings["emulate-sdk"] if settings.given("emulate-sdk") else None,
        torch_backend=_torch_backend(settings, environ),
        exports=look_up({**asked.job.exports, **asked.each.exports}, environ),
        instance_exports={
            rank: look_up(one.exports, environ) for rank, one in asked.single.items()
        },
        directories=find_directories(asked, shape, facts),
    )
    threads = _threads(environ, facts, bindings)
    made = assignments.make_plan(shape, request, list(chain(*bindings)), threads)
    return Setup(
        identity=identity,
        attempt=attempt,
        mpi=mpi,
        arguments=asked.job,
        plan=made,
        request=request,
        threads=threads,
        facts=dict(zip(hosts, facts, strict=True)),
        contexts=_contexts(made, attempt, environ, asked),
        stdin=read_stdin(settings["stdin"], shape.num_instances),
        temporary_cache=temporary_cache,
        notes=[
            *asked.warnings,
            *_without_effect(settings, hosts),
            *_unused_nodes(settings, environ),
        ],
        named_cache=cache if temporary_cache is None else None,
        partition_options=wish,
        needs_ipus=settings.needs_ipus,
    )


def next_attempt(setup: Setup, environ: Mapping[str, str], describe: Describe) -> Setup:
    """Return the same job with the next attempt to run it.

    Args:
        describe: Returns the facts of each host.
    """
    [first] = describe(setup.plan.hosts[:1])
    attempt = draw(setup.identity, setup.attempt.number + 1, first.free_port)
    request = setup.request._replace(attempt=attempt)
    setup = setup._replace(attempt=attempt)
    return _replanned(setup, request, setup.plan.topology, environ)


def with_partition(
    setup: Setup,
    granted: assignments.PartitionVariables,
    num_ilds: int,
    environ: Mapping[str, str],
) -> Setup:
    """Return the same job with the partition that it was granted.

    V-IPU determines the number of ILDs, unless the user has, if the instances can be
    shared equally among so many.
    """
    shape = setup.plan.topology
    wish = setup.partition_options
    chosen = wish is not None and wish.num_ilds is not None
    if not chosen and shape.num_instances % num_ilds == 0:
        shape = replace(shape, num_ilds=num_ilds)
    return _replanned(setup, setup.request._replace(partition=granted), shape, environ)


def without_ipus(setup: Setup, environ: Mapping[str, str]) -> Setup:
    """Return the same job in offline mode."""
    request = setup.request._replace(partition=None, offline=True)
    setup = setup._replace(partition_options=None)
    return _replanned(setup, request, setup.plan.topology, environ)


def _replanned(
    setup: Setup,
    request: assignments.Request,
    shape: topology.Topology,
    environ: Mapping[str, str],
) -> Setup:
    """Return the same job with what instances are told made anew."""
    bindings = [assignment.binding for assignment in setup.plan.assignments]
    made = assignments.make_plan(shape, request, bindings, setup.threads)
    return setup._replace(
        request=request,
        plan=made,
        contexts=[
            context._replace(
                exports=assignments.exported(assignment.shown, environ),
                argv=_shim(setup.attempt, assignment.rank),
            )
            for context, assignment in zip(
                setup.contexts, made.assignments, strict=True
            )
        ],
    )


def _without_effect(settings: Settings, hosts: Sequence[HostSpec]) -> list[str]:
    """Name the options about several hosts that are given for a job on one."""
    if len(hosts) > 1:
        return []
    return [
        f"--{name} has no effect on a job that runs on one host."
        for name in FOR_SEVERAL_HOSTS
        if settings[name]
    ]


def _unused_nodes(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """Say that other nodes of the Slurm job are not used."""
    if settings.given("host") or settings.given("hostfile"):
        return []
    try:
        nodes = from_slurm(environ)
    except HostError as error:
        return [f"{error} All instances run on this machine."]
    if nodes is None or len(nodes) == 1:
        return []
    return [
        f"Slurm has given this job {len(nodes)} nodes ({SLURM_NODE_LIST} is "
        f"{environ[SLURM_NODE_LIST]!r}), but all instances run on this one: this "
        "version of poprun cannot start instances on other machines yet."
    ]


def _shape(settings: Settings, num_hosts: int) -> topology.Topology:
    instances = settings["num-instances"]
    try:
        return topology.Topology(
            num_instances=instances,
            num_replicas=settings["num-replicas"],
            ipus_per_replica=settings["ipus-per-replica"],
            num_ilds=settings["num-ilds"],
            num_hosts=num_hosts,
        )
    except TopologyError as error:
        if not settings.given("num-replicas"):
            error.add_note(
                "Without --num-replicas a job has 1 replica. For one replica in each "
                f"instance add --num-replicas {instances}, or write -n {instances} in "
                f"the place of --num-instances {instances}."
            )
        raise


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        # The current directory has been deleted, which ends every job with a sentence.
        return path


def given_target_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Read the Poplar target options that the caller has set."""
    text = environ.get(env.POPLAR_TARGET_OPTIONS, "")
    if not text:
        return {}
    import json

    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise OptionError(
            f"{env.POPLAR_TARGET_OPTIONS} is {text[:100]!r}, but must be a JSON object "
            'such as {"ipuLinkTopology":"mesh"}. Unset it if you do not need it.'
        )
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in options.items()
    }


def _cache(
    settings: Settings,
    environ: Mapping[str, str],
    shape: topology.Topology,
    identity: str,
    temporary: str,
) -> tuple[str | None, str | None]:
    """Return the cache's path, and the same again if it has to be made."""
    given = settings["executable-cache-path"] or environ.get(env.EXECUTABLE_CACHE_PATH)
    if given is not None:
        # Instances may run in directories of their own.
        given = _absolute(given)
    if given is not None or shape.instances_per_host == 1:
        return given, None
    path = os.path.join(temporary, f"poprun-cache-{identity}")
    return path, path


def _log_level(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return what -vv and --debug ask popdist to log; the caller's own value counts."""
    asked = settings["debug"] or settings.verbosity >= DEBUG
    return "debug" if asked and not environ.get(env.LOG_LEVEL) else None


def _torch_backend(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return what --torch-backend asks for; None where the caller's own value counts.

    Raises:
        OptionError: The backend would not be used.
    """
    given = settings["torch-backend"] if settings.given("torch-backend") else None
    backend = given or environ.get(env.TORCH_BACKEND) or "gloo"
    if backend not in ("gloo", "popdist"):
        raise OptionError(
            f"{env.TORCH_BACKEND} is {backend!r}, but must be gloo or popdist. Unset "
            "it, or use --torch-backend."
        )
    if backend == "popdist" and environ.get(env.TORCH_AUTOLOAD) == "0":
        raise OptionError(
            f"--torch-backend=popdist has no effect with {env.TORCH_AUTOLOAD}=0, which "
            "keeps torch from loading backends that are installed. Unset that variable."
        )
    return given


def _bindings(
    settings: Settings,
    arguments: GlobalArguments,
    shape: topology.Topology,
    facts: Sequence[HostFacts],
) -> list[list[placement.Binding]]:
    """Return the bindings of the instances of each host."""
    strategy = placement.choose_strategy(
        numa_aware=settings["numa-aware"],
        process_placement=settings["process-placement"]
        if settings.given("process-placement")
        else arguments.placement,
        instances_per_host=shape.instances_per_host,
    )
    return [
        placement.place(strategy, shape.instances_per_host, host.machine)
        for host in facts
    ]


def _threads(
    environ: Mapping[str, str],
    facts: Sequence[HostFacts],
    bindings: Sequence[Sequence[placement.Binding]],
) -> list[int] | None:
    """Return the number of threads of each instance; None if the caller has set one."""
    if env.OMP_NUM_THREADS in environ:
        return None
    return [
        number
        for host, own in zip(facts, bindings, strict=True)
        for number in placement.fair_threads(own, host.machine)
    ]


def _contexts(
    made: assignments.Plan,
    attempt: Attempt,
    environ: Mapping[str, str],
    asked: GivenArguments,
) -> list[Context]:
    none = LocalArguments()
    return [
        Context(
            exports=assignments.exported(assignment.shown, environ),
            passed_on=[
                *asked.each.passed_on,
                *asked.single.get(assignment.rank, none).passed_on,
            ],
            argv=_shim(attempt, assignment.rank),
        )
        for assignment in made.assignments
    ]


def _shim(attempt: Attempt, rank: int) -> list[str]:
    """Return the command line of the shim of an instance."""
    return [*PYTHON, "shim", attempt.name, env.CONTROL, str(rank)]
