"""The hosts of each attempt of an elastic job."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from poprun.errors import (
    HostUnreachableError,
    OptionError,
    PoprunError,
    SlurmError,
)
from poprun.host_specs import HostSpec, parse_hosts
from poprun.options.settings import Settings
from poprun.plan import elastic, slurm
from poprun.plan.elastic import (
    Bounds,
    Members,
    check_is_possible,
    choose_members,
    read_bounds,
)
from poprun.reach.discovery import are_named
from poprun.reach.host_search import SearchQuestion
from poprun.run.context import RunContext
from poprun.supervise.guard_start import StartedGuard
from poprun.wire.events import HostsAvailable
from poprun.wire.machine import machine_id
from poprun.words import counted

# They name the hosts, and say how to reach them.
SEARCH_OPTIONS = (
    elastic.DISCOVERY,
    "host",
    "hostfile",
    "ssh",
    "sync",
    "synchronise-python-venv",
)


class ElasticHosts:
    """Finds the hosts that can be used before each attempt.

    Args:
        num_programs: How many programs the job has.
    """

    def __init__(self, context: RunContext, num_programs: int) -> None:
        self._context, self._num_programs = context, num_programs
        self._bounds: Bounds | None = None
        # The hosts named for the last attempt, and its members.
        self._named: Sequence[HostSpec] = ()
        self._last: Members | None = None
        # The hosts of the job before it was stopped to grow, and those that the next
        # attempt has if it could not grow.
        self._before_growth: Sequence[HostSpec] = ()
        self._kept: Sequence[HostSpec] = ()
        # How often each host was lost, or could not be used by an attempt.
        self._losses: Counter[str] = Counter()
        # The hosts that could not be used when an attempt was last prepared.
        self._unusable: Collection[str] = ()

    def settings_of_attempt(
        self,
        guard: StartedGuard | None,
        lost: Collection[str] = (),
        growth: HostsAvailable | None = None,
    ) -> Settings:
        """Return the settings of the job with the hosts that can be used now.

        Args:
            guard: None for a dry run, which takes all hosts as usable.
            lost: The hosts that the last attempt has lost. They are tried again where
                the job needs them, and otherwise before a later attempt.
            growth: The hosts that the last attempt was stopped for.

        Raises:
            HostUnreachableError: The job needs more hosts.
        """
        settings = self._context.settings
        # After a failed growth, these are hosts that have been counted already.
        self._losses.update(name for name in lost if name not in self._unusable)
        named = self._named = self._hosts_to_try(guard, growth)
        if self._bounds is None:
            self._bounds = read_bounds(settings, self._num_programs, len(named))
            if settings["host"] is not None or self._is_on_own_host:
                check_is_possible(named, self._bounds)
        bounds = self._bounds
        others = _without(named, lost) if self.can_do_without(lost) else named
        failures = self._context.open_usable_hosts(others, guard)
        self._unusable = {host.name for host in failures}
        self._losses.update(self._unusable)
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
    def bounds(self) -> Bounds:
        """The numbers that each attempt may have, once settings_of_attempt() ran."""
        assert self._bounds is not None
        return self._bounds

    def can_do_without(self, lost: Collection[str]) -> bool:
        """Return whether the hosts that were named last suffice without those lost."""
        members = choose_members(_without(self._named, lost), self.bounds)
        return members.num_instances >= self.bounds.least_instances

    def keep_members(self) -> None:
        """Let the next attempt have the hosts from before a growth that has failed."""
        self._kept = self._before_growth

    def question(self) -> SearchQuestion | None:
        """Return what to ask while an attempt runs; None if its hosts stay the same."""
        settings, hosts = self._context.settings, self._context.hosts
        members, bounds = self._last, self._bounds
        if members is None or bounds is None or not settings["max-restarts"]:
            return None
        is_full = members.num_instances == bounds.most_instances
        if is_full and not self._list_may_change:
            return None
        return SearchQuestion(
            members=members,
            bounds=bounds,
            losses=dict(self._losses),
            settings={name: settings[name] for name in SEARCH_OPTIONS},
            machines=hosts.machines(members.hosts),
        )

    @property
    def _list_may_change(self) -> bool:
        """Whether hosts of the job may be named no longer."""
        settings = self._context.settings
        has_file = settings["host"] is None and settings["hostfile"] is not None
        return settings[elastic.DISCOVERY] is not None or has_file

    @property
    def _is_on_own_host(self) -> bool:
        """Whether neither an option nor Slurm names the hosts."""
        is_in_slurm = slurm.read_job(self._context.environ) is not None
        return not (is_in_slurm or are_named(self._context.settings))

    def question_while_running(
        self,
        present: Sequence[HostSpec],
        share: int,
        losses: Counter[str],
        staying: Sequence[str] = (),
    ) -> SearchQuestion | None:
        """Return what to ask while instances run on; None if their hosts stay the same.

        Args:
            present: The hosts with instances.
            share: How many instances each of them has.
            losses: How often each host was lost in this attempt.
            staying: The hosts that stay even if they are named no longer.
        """
        settings, bounds = self._context.settings, self._bounds
        if bounds is None or not settings["max-restarts"]:
            return None
        most = min(bounds.most_hosts, bounds.most_instances // share)
        if len(present) >= most and not self._list_may_change:
            return None
        return SearchQuestion(
            members=Members(hosts=present, num_instances=share * len(present)),
            bounds=replace(bounds, share=share),
            losses=dict(self._losses + losses),
            staying=staying,
            # ssh could not ask for a password.
            settings={"distribute-ssh-key": False}
            | {n: settings[n] for n in SEARCH_OPTIONS},
            # poprun's own cannot join.
            machines=[machine_id(), *self._context.hosts.machines(present)],
            synced=sorted(self._context.synced),
        )

    def _hosts_to_try(
        self, guard: StartedGuard | None, growth: HostsAvailable | None
    ) -> Sequence[HostSpec]:
        if growth is not None:
            # Another answer of a discovery script could make the job smaller.
            self._before_growth = self._last.hosts if self._last else ()
            return parse_hosts(",".join(growth.hosts))
        kept, self._kept = self._kept, ()
        try:
            return kept or self._name_hosts(guard)
        except PoprunError as error:
            # A script or a file that was right before may be so again later.
            before = self._named
            if not before and isinstance(error, SlurmError):
                job = slurm.read_job(self._context.environ)
                before = () if job is None else job.nodes
            if not before:
                raise
            self._context.log.warn(f"{error} The attempt has the hosts known before.")
            return before

    def _name_hosts(self, guard: StartedGuard | None) -> Sequence[HostSpec]:
        settings = self._context.settings
        is_listed = settings["host"] is not None or settings["hostfile"] is not None
        if settings.is_given(elastic.DISCOVERY) and is_listed:
            raise OptionError(
                "--host-discovery-script and a list of hosts exclude each other: "
                "the script prints the hosts of each attempt. Leave --host and "
                "--hostfile out."
            )
        named = self._context.name_hosts(guard)
        if named is None and settings["mpirun"] == "local":
            # Its instances go on without lost ones also on one host.
            named = [HostSpec(name="localhost")]
        if named is None:
            raise OptionError(
                f"--{elastic.given_option(settings)} is about a job on several "
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
