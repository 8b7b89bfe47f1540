"""Prepares the attempts of a job: Request -> DeviceReservation -> Plan, Job."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import inf

from poprun.errors import HostUnreachableError, LaunchError, PoprunError
from poprun.job import job_description, output_routes
from poprun.job.reservation import DeviceReservation
from poprun.job.values import Job
from poprun.output import terminal
from poprun.output.output_files import make_files
from poprun.plan.assignments import make_plan
from poprun.plan.host_facts import HostFacts
from poprun.plan.topology import Topology
from poprun.plan.values import PartitionVariables, Plan, Request, new_attempt
from poprun.reach.own_host.resource_limits import check_proc
from poprun.reach.remote import mpi_checks
from poprun.result.verdict import Verdict
from poprun.run.attempt import Successor, wait_for_stdin
from poprun.run.context import RunContext
from poprun.run.elastic_hosts import ElasticHosts
from poprun.run.growth import RunningGrowth
from poprun.run.planner import Planner
from poprun.supervise.guard_start import StartedGuard
from poprun.supervise.host_search import HostSearch
from poprun.wire.events import HostsAvailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a run that change something; tests pass others."""

    # With the arguments of the functions of these names.
    preview: Callable[..., tuple[PartitionVariables | None, str]]
    reserve: Callable[..., DeviceReservation]
    refusal_of_more: Callable[..., str]
    prepare: Callable[..., Job]
    run_attempt: Callable[..., tuple[Verdict, Successor | None]]


def prepare(plan: Plan, files: list[str], context: RunContext) -> Job:
    """Return the job, and make the directories that the user names.

    Raises:
        PoprunError: The job cannot be started.
    """
    request, settings = plan.request, context.settings
    num_instances = request.topology.num_instances
    routes = output_routes.routes(plan, settings, context.caller_environ)
    width = routes.width_of_mark(num_instances)
    job = job_description.make_job(
        plan,
        settings,
        files,
        context.environ,
        routes=routes,
        terminals=terminal.choose_terminals(settings["tty"], width),
        umask=context.umask,
        limits=context.descriptor_limits,
    )
    if request.output_folder is not None:
        make_files(request.output_folder, plan.attempt.number, num_instances)
    job_description.make_cache_directory(request)
    return job


class Preparation:
    """The request, the devices and the plan of each attempt of a job.

    Args:
        request: The request of the first attempt.

    Raises:
        PoprunError: The job cannot be started. Nothing is reserved then.
    """

    def __init__(
        self,
        request: Request,
        guard: StartedGuard,
        context: RunContext,
        stages: Stages,
        planner: Planner,
    ) -> None:
        self._request, self._context, self._stages = request, context, stages
        self._planner, self._hosts = planner, planner.hosts
        self._num_reservations = 0
        # The needs for which there are devices.
        self._reserved_for: tuple[Topology, bool] | None = None
        # Why hosts were last to leave if the job could not be started without them.
        self._failed_drop = ""
        # A job that is refused must not reserve or show anything.
        context.enter("check")
        self._files = _check(request, context)
        context.enter("reserve IPUs")
        self._reserve(guard)

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The log lines about the devices, each with its level."""
        return self._reserved.lines

    def prepare(
        self, number: int = 0, num_failures: int = 0, first: HostFacts | None = None
    ) -> tuple[Plan, Job]:
        """Return the plan and the job of an attempt; its hosts are connected.

        Args:
            num_failures: How many of the attempts before it have failed.
            first: The facts of the host of rank 0, if they are newer than the request.
        """
        request = self._request
        first = first or request.facts[0]
        attempt = new_attempt(request.identity, number, first, num_failures)
        plan = make_plan(request, attempt, self._reserved.partition)
        job = self._stages.prepare(plan, self._files, self._context)
        return plan, self._reserved.with_devices(job)

    def prepare_next(
        self, number: int, num_failures: int, last: Successor, time_left_s: float
    ) -> tuple[Plan, Job]:
        """Reach the hosts again, and return the plan and the job of another attempt.

        Args:
            number: The number of the attempt.
            num_failures: How many of the attempts before it have failed.
            last: What this attempt takes over from the last one.
            time_left_s: How long it may wait for IPUs at most.

        Raises:
            HostUnreachableError: A later attempt may succeed.
        """
        # A host lacks something, or lost hosts still hold devices. A later attempt of
        # an elastic job may have other hosts.
        temporary = LaunchError if self._hosts is None else PoprunError
        first = None
        try:
            if self._hosts is None:
                self._context.reopen_hosts(self._request, last.guard)
                first = self._context.hosts.describe(self._request.hosts[:1])[0]
            else:
                self._change_hosts(self._hosts, last, time_left_s)
            return self.prepare(number, num_failures, first)
        except temporary as error:
            raise HostUnreachableError(str(error)) from error

    def undo_growth(self, growth: HostsAvailable) -> None:
        """Let the next attempt have the hosts from before a growth that has failed."""
        assert self._hosts is not None
        self._hosts.keep_members()
        self._failed_drop = growth.why if growth.dropped else self._failed_drop

    def can_do_without(self, lost: Collection[str]) -> bool:
        """Return whether the next attempt does not need the hosts that are lost."""
        return self._hosts is not None and self._hosts.can_do_without(lost)

    def make_search(self, mark: str, warn: Callable[[str], None]) -> HostSearch | None:
        """Return the search for hosts with which the job is started again.

        Args:
            mark: NAME=VALUE in the environment of every process of the job.
            warn: Says why there are none.

        Returns:
            None if the job cannot grow.
        """
        question = None if self._hosts is None else self._hosts.question()
        if question is None:
            return None

        environ = self._context.environ
        question = replace(question, checks=mpi_checks(self._request.mpi))
        return HostSearch(question, environ, mark, warn, self._refuse_growth)

    def make_growth(
        self, plan: Plan, job: Job, warn: Callable[[str], None]
    ) -> RunningGrowth | None:
        """Return the rules by which hosts join the attempt; None if none may.

        Args:
            warn: Says why hosts cannot be found.
        """
        if self._hosts is None or plan.request.reform_refusal:
            return None
        return RunningGrowth(
            plan, job, self._context, self._hosts, self._planner.read_request, warn
        )

    def _refuse_growth(self, growth: HostsAvailable) -> str:
        """Return why the job cannot have other hosts, such as no IPUs; "" if it can."""
        num_instances = growth.num_instances
        assert self._hosts is not None
        if growth.dropped and growth.why == self._failed_drop:
            # It would be stopped for the same hosts without end.
            return (
                f"{growth.why[:1].upper()}{growth.why[1:]}, but the job keeps its "
                "hosts: it could not be started on the others."
            )
        if self._reserved.partition is None or growth.dropped:
            return ""
        topology = replace(
            self._request.topology,
            num_instances=num_instances,
            num_replicas=self._hosts.bounds.replicas_of(num_instances),
        )
        request = replace(
            self._request,
            topology=topology,
            partition_number=self._num_reservations,
        )
        refusal = self._stages.refusal_of_more(request, self._context.environ)
        if not refusal:
            return ""
        return (
            f"The job does not grow to {num_instances} instances, although "
            f"{growth.why}: {refusal}"
        )

    def _change_hosts(
        self, hosts: ElasticHosts, last: Successor, time_left_s: float
    ) -> None:
        guard = last.guard
        settings = hosts.settings_of_attempt(guard, last.lost_hosts, last.growth)
        request = self._planner.read_request(settings)
        self._request = request.with_files_of(self._request)
        self._files = _check(self._request, self._context)
        if self._needs() != self._reserved_for:
            # The instances get other devices. A job that grows keeps those that it has
            # until there are more.
            held, growth = self._reserved, last.growth
            grows = growth is not None and not growth.dropped
            if not grows:
                self.cancel(guard)
            self._reserve(guard, time_left_s, waits=not grows)
            if grows:
                held.cancel(guard.tell)

    def _needs(self) -> tuple[Topology, bool]:
        """Return what the devices of the job depend on."""
        return self._request.topology, self._request.names_hosts

    def cancel(self, guard: StartedGuard) -> None:
        """Release the devices."""
        self._reserved.cancel(guard.tell)
        self._reserved_for = None

    def _reserve(
        self, guard: StartedGuard, time_left_s: float = inf, *, waits: bool = True
    ) -> None:
        context, options = self._context, self._request.partition_options
        if options is not None and options.wait_s is not None:
            wait_s = min(options.wait_s, time_left_s) if waits else None
            options = replace(options, wait_s=wait_s)
        request = replace(
            self._request,
            partition_options=options,
            partition_number=self._num_reservations,
        )
        self._num_reservations += 1
        self._reserved: DeviceReservation = self._stages.reserve(
            request,
            context.environ,
            guard.tell,
            guard.pid,
            context.log,
            context.phase_line,
        )
        self._reserved_for = self._needs()


def _check(request: Request, context: RunContext) -> list[str]:
    """Return the file of the program for each instance.

    Raises:
        PoprunError: There is no such file, or poprun cannot start the job here.
    """
    check_proc()
    wait_for_stdin(request.stdin)
    context.hosts.check_mpi(request.mpi)
    return context.hosts.find_programs(request, context.environ)
