"""The stages of a run that a dry run leaves out: reserve, describe and start the job.

Request -> DeviceReservation; Plan -> Job -> Attempted
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poprun.errors import OptionError
from poprun.host.local_host import LocalHost
from poprun.job import job_description, reservation
from poprun.job import output_routes as output
from poprun.job.resource_limits import check_proc
from poprun.job.values import Job
from poprun.log import Log
from poprun.options.settings import Settings
from poprun.output import terminal
from poprun.output.output_files import make_files
from poprun.output.phase_line import PhaseLine
from poprun.output.stdin import Stdin
from poprun.plan.values import Plan, Request
from poprun.reach.hosts import Preflight, Preflights
from poprun.result.recorder import Recorder
from poprun.run.attempt import Attempted, supervise_attempt
from poprun.run.links import open_links
from poprun.supervise.clients.preparing_job import PreparingJob
from poprun.supervise.clients.server import Clients
from poprun.supervise.guard_start import StartedGuard
from poprun.supervise.mpirun_process import MpirunProcess
from poprun.trace.job_trace import JobTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What the stages of a run share, and its attempts."""

    settings: Settings
    # The environment that poprun was started with, and what the instances get of it.
    caller_environ: Mapping[str, str]
    environ: Mapping[str, str]
    # The caller's.
    umask: int
    log: Log
    # Shows on a terminal what poprun does before the job runs.
    phase_line: PhaseLine
    hosts: Preflights
    # Reaches hosts, with the guard that ends what is started there.
    open_hosts: Callable[..., Sequence[Preflight]]
    # Serves clients until the first attempt.
    preparing: PreparingJob
    # Writes the files of --result and --events.
    recorder: "Recorder | None" = None
    # For --trace.
    trace: "JobTrace | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a run that change something; tests pass others."""

    # With the arguments of reservation.reserve and of prepare and run_attempt below.
    reserve: Callable[..., reservation.DeviceReservation]
    prepare: Callable[..., Job]
    run_attempt: "Callable[..., Attempted]"


def check(request: Request, context: RunContext) -> list[str]:
    """Return the file of the program for each instance.

    Raises:
        PoprunError: There is no such file, or poprun cannot start the job here.
    """
    check_proc()
    _wait_for_stdin(request.stdin)
    context.hosts.check_mpi(request.mpi)
    return context.hosts.find_programs(request, context.environ)


def prepare(plan: Plan, files: list[str], context: RunContext) -> Job:
    """Return the job, and make the directories that the user names.

    Raises:
        PoprunError: The job cannot be started.
    """
    request, settings, environ = plan.request, context.settings, context.environ
    num_instances = request.topology.num_instances
    width = output.routes(plan, settings, environ).width_of_mark(num_instances)
    job = job_description.make_job(
        plan,
        settings,
        files,
        environ,
        terminals=terminal.choose_terminals(settings["tty"], width),
        umask=context.umask,
    )
    if request.output_folder is not None:
        make_files(request.output_folder, plan.attempt.number, num_instances)
    job_description.make_cache_directory(request)
    return job


def run_attempt(
    job: Job,
    guard: StartedGuard,
    plan: Plan,
    context: RunContext,
    *,
    may_follow: bool = False,
    clients: "Clients | None" = None,
) -> "Attempted":
    """Run one attempt of a job to its end, and report how it went.

    Args:
        may_follow: Whether another attempt may follow if this one fails.
        clients: Those of the time before, if it has served any.
    """
    if context.recorder is not None:
        context.recorder.begin_attempt(plan)
    # The shell may have put poprun in the background while it waited for IPUs.
    _wait_for_stdin(job.stdin)
    hosts = plan.request.hosts
    memory_before = context.hosts.read_memory_counters(hosts)
    several = plan.request.names_hosts
    here = os.uname().nodename if several else hosts[0].name
    mpirun = MpirunProcess(job, guard, here, context.hosts.connections())
    if several:
        links = open_links(job, plan, context.hosts, mpirun.add_shim, here)
    else:
        host = LocalHost(job, here, range(len(job.specs)), mpirun.add_shim)
        host.listen()
        links = [host]
    mpirun.start()
    return supervise_attempt(
        job,
        mpirun,
        links,
        plan,
        context,
        memory_before,
        may_follow=may_follow,
        clients=clients,
    )


def _wait_for_stdin(stdin: Stdin) -> None:
    """Wait until poprun may read its terminal, if an instance gets its stdin.

    Raises:
        OptionError: poprun is in the background, and no shell can continue it.
    """
    if stdin.is_own and not terminal.wait_until_readable(0):
        raise OptionError(
            "--stdin would read the terminal, which another job is using, and no shell "
            "could continue poprun when it is free. Run poprun in the foreground, or "
            "give it another input, such as < /dev/null."
        )


STAGES = Stages(reserve=reservation.reserve, prepare=prepare, run_attempt=run_attempt)
