"""The request of each attempt of a job, checked against the facts of the hosts."""

from collections.abc import Sequence
from dataclasses import replace

from poprun.job import output_routes, reservation
from poprun.options.programs import Program
from poprun.options.settings import Settings
from poprun.plan.elastic import is_elastic, reform_refusal
from poprun.plan.request import read_request
from poprun.plan.values import Describe, Request
from poprun.reach.own_host.temporary_directories import temporary_directory
from poprun.run.context import RunContext
from poprun.run.elastic_hosts import ElasticHosts
from poprun.supervise.guard_start import StartedGuard


class Planner:
    """Reads the requests of one job."""

    def __init__(self, programs: Sequence[Program], context: RunContext) -> None:
        self._programs, self._context = programs, context
        # The hosts of an elastic job; None for a job that always has the same.
        self.hosts: ElasticHosts | None = None
        if is_elastic(context.settings):
            self.hosts = ElasticHosts(context, len(programs))

    def first_request(self, guard: StartedGuard | None) -> Request:
        """Return the request of the first attempt.

        Args:
            guard: None for a dry run.
        """
        context, settings = self._context, self._context.settings
        context.phase_line.show("checking the hosts")
        context.enter("plan")
        if self.hosts is not None:
            settings = self.hosts.settings_of_attempt(guard)
        request = self.read_request(settings)
        notes = (*request.notes, *output_routes.note_on_terminal(request))
        if self.hosts is None and settings["fixed-replicas"]:
            notes += ("--fixed-replicas has no effect on a job that is not elastic.",)
        if self.hosts and request.reform_refusal and not settings["max-restarts"]:
            notes += ("Without --max-restarts, the loss of a host ends the job.",)
        for note in notes:
            context.log.warn(note)
        topology = request.topology
        context.preparing.set_shape(topology.num_instances, topology.num_replicas)
        return request

    def read_request(
        self, settings: Settings, describe: Describe | None = None
    ) -> Request:
        """Return the request of an attempt with these settings.

        Args:
            describe: Returns the facts of each host; by default it asks the host.
        """
        context, environ = self._context, self._context.environ
        request = read_request(
            settings,
            self._programs,
            environ,
            temporary_directory(environ),
            describe or context.hosts.describe,
            reservation.find_host_servers,
            context.identity,
        )
        if self.hosts is None:
            return request
        refusal = reform_refusal(request, settings)
        return replace(
            request,
            arguments=replace(request.arguments, survives=not refusal),
            reform_refusal=refusal,
            least_instances=self.hosts.bounds.least_instances,
            most_instances=self.hosts.bounds.most_instances,
            least_hosts=self.hosts.bounds.least_hosts,
        )
