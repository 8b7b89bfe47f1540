"""From settings to a plan: everything that has to be known before a job can start.

It looks at the machine, the hosts and the mpirun, and changes nothing. Whatever is
wrong with a request comes up here, as a sentence, with nothing started.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from popdist import environment as env
from poprun.errors import OptionError, TopologyError
from poprun.helpers.command import PYTHON
from poprun.log import DEBUG
from poprun.mpirun import adapter
from poprun.mpirun.arguments import (
    merge,
    parse_global,
    parse_local,
    parse_output_directory,
)
from poprun.mpirun.find import find_mpirun
from poprun.mpirun.option_table import INSTANCE
from poprun.mpirun.values import (
    Context,
    GlobalArguments,
    LocalArguments,
    Mpi,
)
from poprun.options.settings import Settings
from poprun.plan import assignments, placement, topology
from poprun.plan.attempt import Attempt, draw
from poprun.plan.host_facts import Describe, HostFacts, describe_hosts
from poprun.plan.hosts import SLURM_NODE_NAME, Host, parse_hostfile, parse_hosts
from poprun.stdio.stdin import Stdin

FOR_SEVERAL_HOSTS = (
    "host-subnet",
    "synchronise-python-venv",
    "synchronise-poplar-sdk",
    "distribute-ssh-key",
)
LONGEST_HOSTFILE = 1 << 20


class Setup(NamedTuple):
    """A job that has been thought through, and not been started."""

    # The id of the job, for all to read.
    identity: str
    attempt: Attempt
    mpi: Mpi
    arguments: GlobalArguments
    plan: assignments.Plan
    # What the plan is made from, besides its topology and its bindings.
    request: assignments.Request
    threads: Sequence[int] | None
    # Each instance in mpirun's argv, with the variables that are only printed.
    contexts: Sequence[Context]
    stdin: Stdin
    # Where instances share what they compile; made at the start, and removed.
    temporary_cache: str | None
    notes: Sequence[str]
    # The directory that the user names for it; made at the start, and kept.
    named_cache: str | None = None

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


class _Asked(NamedTuple):
    """What the user has asked of mpirun."""

    # With what counts for the whole job in the arguments of instances.
    job: GlobalArguments
    each: LocalArguments
    single: Mapping[int, LocalArguments]

    def directory(self, rank: int) -> str | None:
        """Return where an instance runs; None for the current directory."""
        return self.single.get(rank, self.each).wdir or self.each.wdir or self.job.wdir

    @property
    def warnings(self) -> list[str]:
        found = [self.job.warnings, self.each.warnings]
        found += [one.warnings for one in self.single.values()]
        return [warning for warnings in found for warning in warnings]


def make_setup(
    settings: Settings,
    environ: Mapping[str, str],
    temporary: str,
    describe: Describe = describe_hosts,
) -> Setup:
    """Plan a job, and describe all that is needed to start it.

    Args:
        temporary: Where temporary directories are made.
        describe: Returns the facts of each host.

    Raises:
        PoprunError: Something about it makes no sense, or is not there.
    """
    hosts = _hosts(settings, environ)
    shape = _shape(settings, len(hosts))
    _check_slots(hosts, shape)
    mpi = find_mpirun(settings["mpirun"], environ)
    asked = _asked(settings, mpi, shape)
    _check_instance(settings, "only-output-from-instance", shape.num_instances)

    identity = os.urandom(16).hex()
    facts = describe(hosts)
    # Rank 0 listens on the port, and runs on the first host.
    attempt = draw(identity, 0, facts[0].free_port)
    cache, temporary_cache = _cache(settings, environ, shape, attempt, temporary)
    bindings = _bindings(settings, asked.job, shape, facts)
    request = assignments.Request(
        identity=identity,
        hosts=hosts,
        cwds=[host.cwd for host in facts],
        offline=settings.offline,
        attempt=attempt,
        partition=_partition(settings),
        cache_path=cache,
        target_options=given_target_options(environ),
        libmpi=None if env.MPI4PY_LIBMPI in environ else mpi.libmpi,
        log_level=_log_level(settings, environ),
        exports=_values({**asked.job.exports, **asked.each.exports}, environ),
        instance_exports={
            rank: _values(one.exports, environ) for rank, one in asked.single.items()
        },
        directories=_directories(asked, shape, facts),
    )
    threads = None
    if env.OMP_NUM_THREADS not in environ:
        threads = [
            number
            for host, own in zip(facts, bindings, strict=True)
            for number in placement.fair_threads(own, host.machine)
        ]
    made = assignments.make_plan(shape, request, list(chain(*bindings)), threads)
    return Setup(
        identity=identity,
        attempt=attempt,
        mpi=mpi,
        arguments=asked.job,
        plan=made,
        request=request,
        threads=threads,
        contexts=_contexts(made, attempt, environ, asked),
        stdin=_stdin(settings["stdin"], shape.num_instances),
        temporary_cache=temporary_cache,
        notes=[*asked.warnings, *_without_effect(settings, hosts)],
        named_cache=cache if temporary_cache is None else None,
    )


def next_attempt(
    setup: Setup, environ: Mapping[str, str], describe: Describe = describe_hosts
) -> Setup:
    """Return the same job with the next attempt to run it.

    Args:
        describe: Returns the facts of each host.
    """
    [first] = describe(setup.plan.hosts[:1])
    attempt = draw(setup.identity, setup.attempt.number + 1, first.free_port)
    request = setup.request._replace(attempt=attempt)
    temporary_cache = None
    if setup.temporary_cache is not None:
        temporary_cache = _cache_of(attempt, os.path.dirname(setup.temporary_cache))
        request = request._replace(cache_path=temporary_cache)
    bindings = [assignment.binding for assignment in setup.plan.assignments]
    made = assignments.make_plan(setup.plan.topology, request, bindings, setup.threads)
    return setup._replace(
        attempt=attempt,
        request=request,
        plan=made,
        contexts=[
            context._replace(
                exports=assignments.exported(assignment.shown, environ),
                argv=_shim(attempt, assignment.rank),
            )
            for context, assignment in zip(
                setup.contexts, made.assignments, strict=True
            )
        ],
        temporary_cache=temporary_cache,
    )


def _check_slots(hosts: Sequence[Host], shape: topology.Topology) -> None:
    share = shape.instances_per_host
    for host in hosts:
        if host.slots is not None and host.slots < share:
            raise OptionError(
                f"The host {host} has fewer slots than instances: each host gets "
                f"{_instances(share)}. Give it {share} slots, or ask for fewer "
                "instances by --num-instances."
            )


def _without_effect(settings: Settings, hosts: Sequence[Host]) -> list[str]:
    """Name the options about several hosts that are given for a job on one."""
    if len(hosts) > 1:
        return []
    return [
        f"--{name} has no effect on a job that runs on one host."
        for name in FOR_SEVERAL_HOSTS
        if settings[name]
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


def _asked(settings: Settings, mpi: Mpi, shape: topology.Topology) -> _Asked:
    job = parse_global(_joined(settings["mpi-global-args"]), mpi.flavour)
    each = parse_local(_joined(settings["mpi-local-args"]), mpi.flavour)
    single = _instance_arguments(settings, mpi, shape.num_instances)
    _check_npernode((job.npernode, each.npernode), shape)
    others = [each.job, *(one.job for one in single.values())]
    if settings["output-filename"] is not None:
        directory, nocopy = parse_output_directory(
            settings["output-filename"], "--output-filename"
        )
        others.append(GlobalArguments(output_filename=directory, output_nocopy=nocopy))
    others.append(_about_root(settings))
    return _Asked(job=merge(job, others), each=each, single=single)


def _about_root(settings: Settings) -> GlobalArguments:
    """Read --allow-run-as-root: without it, root is allowed and others do not need it.

    Only a "no" is asked of poprun alone; mpirun has no such argument.
    """
    if settings["allow-run-as-root"] is False and os.geteuid() == 0:
        raise OptionError(
            "You are root, and --allow-run-as-root is no "
            f"({settings.origin('allow-run-as-root')}). Leave it out, or run poprun "
            "as another user."
        )
    return GlobalArguments(allow_run_as_root=bool(settings["allow-run-as-root"]))


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        # The current directory has been deleted, which ends every job with a sentence.
        return path


def _directories(
    asked: _Asked, shape: topology.Topology, facts: Sequence[HostFacts]
) -> list[str | None]:
    """Return the absolute path of the directory of each instance, if it has its own."""
    ranks = range(shape.num_instances)
    wishes = [asked.directory(rank) for rank in ranks]
    for wish in filter(None, dict.fromkeys(wishes)):
        if not os.path.isdir(wish):
            what = "is not a directory" if os.path.exists(wish) else "does not exist"
            raise OptionError(
                f"--wdir {wish!r} {what}, so no instance can run in it. Create it, or "
                "name another."
            )
    cwds = [facts[shape.host_of(rank)].cwd for rank in ranks]
    return [
        None if wish is None else os.path.normpath(os.path.join(cwd, wish))
        for cwd, wish in zip(cwds, wishes, strict=True)
    ]


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


def _hosts(settings: Settings, environ: Mapping[str, str]) -> Sequence[Host]:
    if settings["host"] is not None:
        return parse_hosts(settings["host"])
    if settings["hostfile"] is not None:
        path = settings["hostfile"]
        try:
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read(LONGEST_HOSTFILE + 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise OptionError(
                f"--hostfile {path!r} cannot be read: {reason}."
            ) from None
        if len(text) > LONGEST_HOSTFILE:
            raise OptionError(
                f"--hostfile {path!r} has more than {LONGEST_HOSTFILE} characters, "
                "more than any list of hosts has. Name another file."
            )
        return parse_hostfile(text, path)
    # Below Slurm the node has a name that its users know it by.
    return [Host(name=environ.get(SLURM_NODE_NAME) or "localhost")]


def _joined(texts: Sequence[str]) -> str:
    return "\n".join(texts)


def _instance_arguments(
    settings: Settings, mpi: Mpi, num_instances: int
) -> dict[int, LocalArguments]:
    texts: dict[int, list[str]] = {}
    for rank, text in settings["instance-mpi-local-args"]:
        texts.setdefault(rank, []).append(text)
    for rank in texts:
        if rank >= num_instances:
            raise OptionError(
                f"{INSTANCE} names instance {rank}, but the job has only "
                f"{_instances(num_instances)}. {_which(num_instances)}"
            )
    return {
        rank: parse_local(_joined(own), mpi.flavour, INSTANCE)
        for rank, own in texts.items()
    }


def _check_instance(settings: Settings, name: str, num_instances: int) -> None:
    rank = settings[name]
    if rank is not None and rank >= num_instances:
        raise OptionError(
            f"--{name} is {rank}, but the job has only {_instances(num_instances)}. "
            f"{_which(num_instances)}"
        )


def _instances(number: int) -> str:
    return f"{number} instance{'s' if number > 1 else ''}"


def _which(number: int) -> str:
    return "Give 0." if number == 1 else f"Give a number from 0 to {number - 1}."


def _check_npernode(asked: Sequence[int | None], shape: topology.Topology) -> None:
    for number in asked:
        if number is not None and number != shape.instances_per_host:
            raise OptionError(
                f"--npernode {number} contradicts --num-instances and --host, by which "
                f"each host gets {shape.instances_per_host}. Leave --npernode out."
            )


def _cache(
    settings: Settings,
    environ: Mapping[str, str],
    shape: topology.Topology,
    attempt: Attempt,
    temporary: str,
) -> tuple[str | None, str | None]:
    """Return the cache's path, and the same again if it has to be made."""
    given = settings["executable-cache-path"] or environ.get(env.EXECUTABLE_CACHE_PATH)
    if given is not None:
        # Instances may run in directories of their own.
        given = _absolute(given)
    if given is not None or shape.instances_per_host == 1:
        return given, None
    path = _cache_of(attempt, temporary)
    return path, path


def _cache_of(attempt: Attempt, temporary: str) -> str:
    return os.path.join(temporary, f"poprun-cache-{attempt.name}")


def _log_level(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return what -vv and --debug ask popdist to say; the caller's own word counts."""
    asked = settings["debug"] or settings.verbosity >= DEBUG
    return "debug" if asked and not environ.get(env.LOG_LEVEL) else None


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


def _partition(settings: Settings) -> assignments.Partition | None:
    if settings.offline:
        return None
    return assignments.Partition(
        server_host=settings["vipu-server-host"],
        server_port=settings["vipu-server-port"],
        server_timeout=int(settings["vipu-server-timeout"]),
        name=settings["vipu-partition"] or "",
    )


def _values(
    exports: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, str]:
    """Look up what is to be forwarded; what the caller has not is not forwarded."""
    found: dict[str, str] = {}
    for name, value in exports.items():
        if value is not None:
            found[name] = value
        elif name.endswith("*"):
            found |= {n: v for n, v in environ.items() if _is_named(n, name[:-1])}
        elif name in environ:
            found[name] = environ[name]
    return found


def _is_named(name: str, beginning: str) -> bool:
    own = name in env.TOPOLOGY_VARIABLES or name in env.JOB_VARIABLES
    return name.startswith(beginning) and not own


def _contexts(
    made: assignments.Plan,
    attempt: Attempt,
    environ: Mapping[str, str],
    asked: _Asked,
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


def _stdin(text: str, num_instances: int) -> Stdin:
    if text == "none":
        return Stdin()
    if text == "all":
        return Stdin(copies=num_instances)
    if text.isascii() and text.isdigit():
        if int(text) >= num_instances:
            raise OptionError(
                f"--stdin is {text}, but the job has only {_instances(num_instances)}. "
                f"{_which(num_instances)} A file of that name is ./{text}."
            )
        return Stdin(rank=int(text))
    return Stdin(path=_readable(text))


def _readable(name: str) -> str:
    """Return the path of a file that every instance can read from its beginning."""
    path = os.path.realpath(name)  # /dev/stdin is another file to an instance
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISFIFO(mode):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"--stdin is {name!r}, which cannot be read: {reason}. It must be none, "
            "all, the number of an instance or a file."
        ) from None
    if stat.S_ISDIR(mode):
        raise OptionError(f"--stdin is {name!r}, a directory. Name a file in it.")
    if stat.S_ISFIFO(mode):
        raise OptionError(
            f"--stdin is {name!r}, a named pipe, which has one reader only. Let "
            f"poprun read it, for one instance or for all: --stdin all < {name}"
        )
    return path
