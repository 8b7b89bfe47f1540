"""The stages of a run that a dry run leaves out: reserve, describe and start the job.

Request -> DeviceReservation; Plan -> Job -> Verdict
"""

from collections.abc import Callable
from dataclasses import dataclass

from poprun.job import job_description, reservation
from poprun.job import output_routes as output
from poprun.job.resource_limits import check_proc
from poprun.job.values import Job
from poprun.output import terminal
from poprun.output.output_files import make_files
from poprun.plan.values import Plan, Request
from poprun.result.verdict import Verdict
from poprun.run.attempt import Successor, run_attempt, wait_for_stdin
from poprun.run.context import RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a run that change something; tests pass others."""

    # With the arguments of the functions of these names.
    reserve: Callable[..., reservation.DeviceReservation]
    prepare: Callable[..., Job]
    run_attempt: Callable[..., tuple[Verdict, Successor | None]]


def check(request: Request, context: RunContext) -> list[str]:
    """Return the file of the program for each instance.

    Raises:
        PoprunError: There is no such file, or poprun cannot start the job here.
    """
    check_proc()
    wait_for_stdin(request.stdin)
    context.hosts.check_mpi(request.mpi)
    return context.hosts.find_programs(request, context.environ)


def prepare(plan: Plan, files: list[str], context: RunContext) -> Job:
    """Return the job, and make the directories that the user names.

    Raises:
        PoprunError: The job cannot be started.
    """
    request, settings = plan.request, context.settings
    num_instances = request.topology.num_instances
    routes = output.routes(plan, settings, context.caller_environ)
    width = routes.width_of_mark(num_instances)
    job = job_description.make_job(
        plan,
        settings,
        files,
        context.environ,
        routes=routes,
        terminals=terminal.choose_terminals(settings["tty"], width),
        umask=context.umask,
    )
    if request.output_folder is not None:
        make_files(request.output_folder, plan.attempt.number, num_instances)
    job_description.make_cache_directory(request)
    return job


STAGES = Stages(reserve=reservation.reserve, prepare=prepare, run_attempt=run_attempt)
