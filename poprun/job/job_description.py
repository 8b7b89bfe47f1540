"""Describe an attempt: Plan -> Job, with its directories, environments and SPECs."""

import errno
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

from popdist import environment as env
from poprun.errors import OptionError
from poprun.helpers.helper_commands import PYTHON_VARIABLE
from poprun.helpers.job_files import PREFIX
from poprun.helpers.own_process import IN_SLURM
from poprun.job.values import ENDED_FILE, Job, Resource, directory_resource
from poprun.mpirun.environment import (
    INSTANCE_PREFIXES,
    MPIRUN_PREFIXES,
    without_many,
    without_outer_mpi,
)
from poprun.options.settings import Settings
from poprun.output.routes import Routes
from poprun.output.terminal import Terminals
from poprun.plan import slurm
from poprun.plan.host_facts import HostFacts
from poprun.plan.values import Assignment, Plan, Request
from poprun.reach.own_host.resource_limits import raise_descriptor_limit
from poprun.reach.own_host.temporary_directories import private_directory_place
from poprun.wire import protocol

PYTHONPATH = "PYTHONPATH"
# The kernel's limits: of one word, and of all together a share of the stack's.
PAGES_PER_WORD = 32
LEAST_ROOM, MOST_ROOM = 128 << 10, 6 << 20
POINTER = 8


def make_job(
    plan: Plan,
    settings: Settings,
    paths: Sequence[str],
    environ: Mapping[str, str],
    *,
    routes: Routes | None = None,
    terminals: Terminals | None = None,
    umask: int = 0o022,
    limits: tuple[int, int],
) -> Job:
    """Return the description of an attempt of a job to launch.

    Args:
        paths: The program's file, found for each instance.
        umask: The umask of the instances.
        limits: The caller's soft and hard limit of open files.

    Raises:
        OptionError: exec would not accept the program's words or environment.
    """
    request = plan.request
    directory = _directory(plan, environ)
    is_traced = settings["trace"] is not None
    more_files = (2 if request.output_folder else 0) + bool(request.stdin.copies)
    raise_descriptor_limit(request.topology.num_instances, more_files)
    terminals = terminals or Terminals()
    common = _common_spec(request, settings, terminals, umask)
    inherited = [
        _inherited(request, facts, environ, directory, is_traced=is_traced)
        for facts in request.facts
    ]
    return Job(
        control=plan.attempt.control,
        mark=f"{env.JOB_ID}={request.identity}",
        mpirun=plan.argv,
        mpirun_environment=_mpirun_environment(plan, environ, directory),
        specs=[
            _spec(common, plan, assignment, path, inherited, limits).pack()
            for assignment, path in zip(plan.assignments, paths, strict=True)
        ],
        stdin=request.stdin,
        routes=routes or Routes(),
        terminals=terminals,
        grace=settings["grace"],
        keep_going=settings["keep-going"],
        has_mpi=request.mpi.has_mpi,
        timeout=inf if settings["timeout"] is None else settings["timeout"],
        start_timeout=settings["start-timeout"],
        reform_refusal=request.reform_refusal,
        least_instances=request.least_instances,
        most_instances=request.most_instances,
        least_hosts=request.least_hosts,
        host_names=[assignment.host.name for assignment in plan.assignments],
        is_in_slurm=slurm.JOB_ID in environ,
        descriptor_limits=limits,
        attempt_resources=[directory_resource(directory)],
        job_resources=_cache(plan),
        directory=directory,
        leftovers=request.mpi.leftovers,
        is_traced=is_traced,
    )


def _directory(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return the directory of the attempt, which has the same path on all hosts."""
    facts = plan.request.facts
    elsewhere = [each.directory_places for each in facts if not each.is_own_host]
    place = private_directory_place(environ, elsewhere)
    return os.path.join(place, os.fsdecode(PREFIX) + plan.attempt.name)


def _inherited(
    request: Request,
    facts: HostFacts,
    environ: Mapping[str, str],
    directory: str,
    *,
    is_traced: bool,
) -> dict[str, str]:
    """Return the variables that the instances of a host have in common."""
    if facts.environ is not None:
        # The environment of a login there, with the variables that PopRun forwards.
        forwarded = {name: environ[name] for name in request.forwarded}
        environ = {**facts.environ, **forwarded}
        # poprun asks the V-IPU server for all instances.
        for name in (env.VIPU_API_HOST, env.VIPU_API_PORT):
            environ.pop(name, None)
    home = {"HOME": directory} if request.mpi.needs_home else {}
    own = {env.ENDED_INSTANCES: os.path.join(directory, ENDED_FILE)}
    if is_traced:
        own[env.TRACE] = directory
    return home | without_outer_mpi(environ) | own


def _mpirun_environment(
    plan: Plan, environ: Mapping[str, str], directory: str
) -> dict[bytes, bytes]:
    mpi = plan.request.mpi
    few = without_many(environ)
    variables = mpi.environment(few, directory)
    variables[env.JOB_ID] = plan.request.identity
    variables[env.CONTROL] = plan.attempt.control
    if slurm.JOB_ID in environ:
        variables[IN_SLURM] = "1"
    if plan.request.names_hosts:
        variables |= mpi.remote_environment(plan.request.subnet)
        variables[PYTHON_VARIABLE] = sys.executable
    return {os.fsencode(name): os.fsencode(v) for name, v in variables.items()}


def _cache(plan: Plan) -> list[Resource]:
    """Return the cache of the job, if it is not shared with other jobs."""
    path = plan.request.cache_path
    if path is None or not plan.request.cache_is_temporary:
        return []
    # The first attempt makes it for all.
    return [directory_resource(path, exists=plan.attempt.number > 0)]


def make_cache_directory(request: Request) -> None:
    """Make the directory of --executable-cache-path, in which instances write."""
    path = request.cache_path
    if path is None or request.cache_is_temporary:
        return
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise OptionError(
            f"--executable-cache-path {path!r} cannot be used: "
            f"{error.strerror}. Name a directory in which you may write."
        ) from None


def with_interpreter(variables: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return an environment in which Python imports poprun's sitecustomize first.

    It takes itself out again: interpreter/sitecustomize.py knows these three forms.
    """
    if ":" in folder:
        return dict(variables)  # what PYTHONPATH cannot name
    value = variables.get(PYTHONPATH)
    if value is None:
        path = f"{folder}//"
    else:
        path = f"{folder}:{value}" if value else f"{folder}/"
    return {**variables, PYTHONPATH: path}


def _common_spec(
    request: Request, settings: Settings, terminals: Terminals, umask: int
) -> Callable[..., protocol.Spec]:
    """Return a function that adds the fields that all instances have in common."""
    return partial(
        protocol.Spec,
        grace_ms=int(settings["grace"] * 1000),
        terminals=(terminals.stdout, terminals.stderr),
        size=terminals.size(),
        merge_stderr=request.arguments.merge_stderr,
        umask=umask,
        mpi_prefixes=list(map(os.fsencode, INSTANCE_PREFIXES)),
        mpirun_prefixes=list(map(os.fsencode, MPIRUN_PREFIXES)),
    )


def _spec(
    common: Callable[..., protocol.Spec],
    plan: Plan,
    assignment: Assignment,
    path: str,
    inherited: Sequence[Mapping[str, str]],
    limits: tuple[int, int],
) -> protocol.Spec:
    """Return the spec of an instance.

    Args:
        common: See _common_spec.
        path: The program's file.
        inherited: The variables that the instances of a host share, by host.
        limits: The caller's soft and hard limit of open files.
    """
    request, rank = plan.request, assignment.rank
    facts = assignment.facts
    argv = [os.fsencode(word) for word in assignment.program.argv]
    own = assignment.variables
    variables = with_interpreter(
        {**inherited[plan.topology.host_of(rank)], **own}, facts.interpreter
    )
    environment = [os.fsencode(f"{name}={v}") for name, v in variables.items()]
    _check_sizes(argv, environment, facts)
    is_sent = request.stdin.is_sent_to(rank)
    return common(
        path=os.fsencode(path),
        argv=argv,
        environment=environment,
        cwd=os.fsencode(assignment.cwd),
        # A variable that the user sets counts more than the same one from mpirun.
        users=[os.fsencode(n) for n in own if n.startswith(INSTANCE_PREFIXES)],
        cpus=list(assignment.binding.cpus or ()),
        memory_nodes=list(assignment.binding.memory_nodes or ()),
        stdin=protocol.SENT if is_sent else os.fsencode(request.stdin.path),
        ignored=list(facts.ignored_signals),
        open_files=_open_files(facts, limits),
    )


def _open_files(facts: HostFacts, limits: tuple[int, int]) -> int:
    """Return the soft limit of open files of an instance; 0 for its shim's."""
    if not facts.is_own_host:
        return facts.open_files  # the limit of a login there
    soft, hard = limits
    # The shims here have the hard limit.
    return 0 if soft == hard else soft


def _check_sizes(
    argv: Sequence[bytes], environment: Sequence[bytes], facts: HostFacts
) -> None:
    longest = PAGES_PER_WORD * facts.page_bytes - 1
    for word in argv:
        if len(word) > longest:
            raise OptionError(
                f"An argument of the program has {len(word)} bytes, but the kernel "
                f"accepts at most {longest}. Pass it in a file."
            )
    for assignment in environment:
        if len(assignment) > longest:
            name = assignment.partition(b"=")[0].decode(errors="replace")
            raise OptionError(
                f"The variable {name} is {len(assignment)} bytes long with its "
                f"name, but the kernel accepts at most {longest}. Pass it in a file."
            )
    total = sum(len(word) + 1 + POINTER for word in (*argv, *environment))
    limit = facts.stack_limit
    share = MOST_ROOM if limit == resource.RLIM_INFINITY else limit // 4
    room = max(LEAST_ROOM, min(MOST_ROOM, share))
    if total > room:
        raise OptionError(
            f"The program's arguments and environment have {total} bytes in total, "
            f"but the kernel accepts {room}. Make them shorter, or raise the "
            "limit with 'ulimit -s'."
        )
