"""The hosts of each attempt of an elastic job."""

from collections.abc import Collection, Sequence

from poprun.errors import HostUnreachableError, OptionError
from poprun.host_specs import HostSpec
from poprun.options.settings import Settings
from poprun.plan import elastic, slurm
from poprun.plan.elastic import (
    Bounds,
    Members,
    check_is_possible,
    choose_members,
    read_bounds,
)
from poprun.plan.request import read_named_hosts
from poprun.run.context import RunContext
from poprun.supervise.guard_start import StartedGuard
from poprun.words import counted


class ElasticHosts:
    """Finds the hosts that can be used before each attempt.

    Args:
        num_programs: How many programs the job has.
    """

    def __init__(self, context: RunContext, num_programs: int) -> None:
        self._context, self._num_programs = context, num_programs
        self._bounds: Bounds | None = None
        # Of the last attempt: the hosts that were named, and those that took part.
        self._named: Sequence[HostSpec] = ()
        self._last: Members | None = None

    def settings_of_attempt(
        self, guard: StartedGuard | None, lost: Collection[str]
    ) -> Settings:
        """Return the settings of the job with the hosts that can be used now.

        Args:
            guard: None for a dry run, which takes all hosts as usable.
            lost: The hosts that the last attempt has lost. They are tried again where
                the job needs them, and otherwise before a later attempt.

        Raises:
            HostUnreachableError: The job needs more hosts.
        """
        settings = self._context.settings
        named = self._named = self._named_hosts(guard)
        if self._bounds is None:
            self._bounds = read_bounds(settings, self._num_programs, len(named))
            if settings["host"] is not None:
                check_is_possible(named, self._bounds)
        bounds = self._bounds
        others = _without(named, lost) if self.can_do_without(lost) else named
        failures = self._context.open_usable_hosts(others, guard)
        usable = [host for host in others if host not in failures]
        members = choose_members(usable, bounds)
        if members.num_instances < bounds.least_instances:
            raise HostUnreachableError(
                "\n".join([_too_few(members, usable, bounds), *failures.values()])
            )
        self._context.hosts.keep(members.hosts)
        self._say(members, bounds, failures.values())
        return elastic.settings_with(settings, members, bounds)

    @property
    def least_instances(self) -> int:
        """The smallest number of instances that the job may have."""
        return 1 if self._bounds is None else self._bounds.least_instances

    def can_do_without(self, lost: Collection[str]) -> bool:
        """Return whether the hosts that were named last suffice without those lost."""
        assert self._bounds is not None
        members = choose_members(_without(self._named, lost), self._bounds)
        return members.num_instances >= self._bounds.least_instances

    def _named_hosts(self, guard: StartedGuard | None) -> Sequence[HostSpec]:
        context = self._context
        named = read_named_hosts(context.settings)
        if context.settings.is_given(elastic.DISCOVERY):
            if named is not None:
                raise OptionError(
                    "--host-discovery-script and a list of hosts exclude each other: "
                    "the script prints the hosts of each attempt. Leave --host and "
                    "--hostfile out."
                )
            return context.discover_hosts(guard)
        if named is None and (job := slurm.read_job(context.environ)) is not None:
            named = job.nodes
        if named is None and context.settings["mpirun"] == "local":
            # Its instances go on without lost ones also on one host.
            named = [HostSpec(name="localhost")]
        if named is None:
            raise OptionError(
                f"--{elastic.given_option(context.settings)} is about a job on several "
                "hosts, but none is named. Name them with --host or --hostfile, or "
                "give a --host-discovery-script. On one host a job can be elastic "
                "with --mpirun local."
            )
        return named

    def _say(self, members: Members, bounds: Bounds, failures: Collection[str]) -> None:
        """Name the members, if they are not the whole job or have changed."""
        log = self._context.log
        for failure in failures:
            log.warn(failure)
        is_whole = members.num_instances == bounds.most_instances
        if members != (self._last or (members if is_whole else None)):
            names = ", ".join(host.name for host in members.hosts)
            log.say(
                f"the job has {counted(members.num_instances, 'instance')} of at most "
                f"{bounds.most_instances} now, on {names}."
            )
        self._last = members


def _without(hosts: Sequence[HostSpec], lost: Collection[str]) -> Sequence[HostSpec]:
    return [host for host in hosts if host.name not in lost]


def _too_few(members: Members, usable: Sequence[HostSpec], bounds: Bounds) -> str:
    names = ", ".join(host.name for host in usable) or "none"
    return (
        f"The job needs {counted(bounds.least_hosts, 'host')} and "
        f"{counted(bounds.least_instances, 'instance')} at least, but with the hosts "
        f"that can be used ({names}) it can have {members.num_instances}. Wait for "
        "more hosts, or allow fewer with --min-instances or --nnodes."
    )
