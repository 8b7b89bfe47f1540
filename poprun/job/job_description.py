"""From a plan to a running job: its directories, its environment, its messages."""

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
from poprun.job.resource_limits import raise_descriptor_limit
from poprun.job.values import Job, Resource, directory_resource
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
from poprun.reach.directories import private_directory_place
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
) -> Job:
    """Return the description of an attempt of a job to launch.

    Args:
        paths: The program's file, found for each instance.
        umask: The umask of the instances.

    Raises:
        OptionError: exec would not accept the program's words or environment.
    """
    request = plan.request
    directory = _directory(plan, environ)
    ended_file = os.path.join(directory, "ended-instances")
    limits = _raise_descriptor_limit(request)
    terminals = terminals or Terminals()
    is_traced = settings["trace"] is not None
    own = {env.ENDED_INSTANCES: ended_file}
    if is_traced:
        own[env.TRACE] = directory
    inherited = [
        {**_inherited(request, facts, environ, directory), **own}
        for facts in request.facts
    ]
    spec = _common_spec(request, settings["grace"], terminals, limits, umask)
    return Job(
        control=plan.attempt.control,
        mark=f"{env.JOB_ID}={request.identity}",
        mpirun=plan.argv,
        mpirun_environment=_mpirun_environment(plan, environ, directory),
        specs=_specs(spec, plan, paths, inherited),
        stdin=request.stdin,
        routes=routes or Routes(),
        terminals=terminals,
        merge_stderr=request.arguments.merge_stderr,
        grace=settings["grace"],
        keep_going=settings["keep-going"],
        has_mpi=request.mpi.has_mpi,
        timeout=inf if settings["timeout"] is None else settings["timeout"],
        start_timeout=settings["start-timeout"],
        is_in_slurm=slurm.JOB_ID in environ,
        descriptor_limits=limits,
        attempt_resources=[directory_resource(directory)],
        job_resources=_cache(plan),
        directory=directory,
        ended_file=ended_file,
        leftovers=request.mpi.leftovers,
        is_traced=is_traced,
    )


def _directory(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return the directory of the attempt, which has the same path on all hosts."""
    facts = plan.request.facts
    elsewhere = [each.directory_places for each in facts if not each.is_own_host]
    place = private_directory_place(environ, elsewhere)
    return os.path.join(place, os.fsdecode(PREFIX) + plan.attempt.name)


def _common_spec(
    request: Request,
    grace: float,
    terminals: Terminals,
    limits: tuple[int, int],
    umask: int,
) -> Callable[..., protocol.Spec]:
    """Return protocol.Spec with the fields that all instances have in common."""
    return partial(
        protocol.Spec,
        grace_ms=int(grace * 1000),
        terminals=(terminals.stdout, terminals.stderr),
        size=terminals.size(),
        merge_stderr=request.arguments.merge_stderr,
        # The shims have the hard limit; 0 stands for theirs.
        open_files=0 if limits[0] == limits[1] else limits[0],
        umask=umask,
    )


def _inherited(
    request: Request,
    facts: HostFacts,
    environ: Mapping[str, str],
    directory: str,
) -> dict[str, str]:
    """Return the caller's part of what the instances of a host have in common."""
    if facts.environ is not None:
        # The environment of a login there, with the variables that PopRun forwards.
        forwarded = {name: environ[name] for name in request.forwarded}
        environ = {**facts.environ, **forwarded}
        # poprun asks the V-IPU server for all instances.
        for name in (env.VIPU_API_HOST, env.VIPU_API_PORT):
            environ.pop(name, None)
    home = {"HOME": directory} if request.mpi.needs_home else {}
    return home | without_outer_mpi(environ)


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


def _raise_descriptor_limit(request: Request) -> tuple[int, int]:
    files = 2 if request.output_folder else 0
    each = files + (1 if request.stdin.copies else 0)
    return raise_descriptor_limit(request.topology.num_instances, each)


def instance_environment(
    assignment: Assignment, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of one instance, but for what MPI gives it."""
    return {**inherited, **assignment.variables}


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


def _specs(
    spec: Callable[..., protocol.Spec],
    plan: Plan,
    paths: Sequence[str],
    inherited: Sequence[Mapping[str, str]],
) -> list[bytes]:
    """Return the SPEC messages of the instances, in rank order.

    Args:
        spec: Returns one, with the fields that all instances have in common.
        inherited: The variables that the instances of a host share, by host.
    """
    messages = []
    for assignment, path in zip(plan.assignments, paths, strict=True):
        argv = [os.fsencode(word) for word in assignment.program.argv]
        facts = assignment.facts
        variables = with_interpreter(
            instance_environment(
                assignment, inherited[plan.topology.host_of(assignment.rank)]
            ),
            facts.interpreter,
        )
        environment = [os.fsencode(f"{name}={v}") for name, v in variables.items()]
        _check_sizes(argv, environment, facts)
        # A variable that the user sets counts more than the same one from mpirun.
        users = [
            name for name in assignment.variables if name.startswith(INSTANCE_PREFIXES)
        ]
        is_sent = plan.request.stdin.is_sent_to(assignment.rank)
        message = spec(
            path=os.fsencode(path),
            argv=argv,
            environment=environment,
            cwd=os.fsencode(assignment.cwd),
            mpi_prefixes=[prefix.encode() for prefix in INSTANCE_PREFIXES],
            mpirun_prefixes=[prefix.encode() for prefix in MPIRUN_PREFIXES],
            users=[name.encode() for name in users],
            cpus=list(assignment.binding.cpus or ()),
            memory_nodes=list(assignment.binding.memory_nodes or ()),
            stdin=protocol.SENT if is_sent else os.fsencode(plan.request.stdin.path),
            ignored=list(facts.ignored_signals),
            **_own_limits(facts),
        ).pack()
        messages.append(message)
    return messages


def _own_limits(facts: HostFacts) -> dict[str, int]:
    """Return the limits that an instance has from the login on another host."""
    return {} if facts.is_own_host else {"open_files": facts.open_files}


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
