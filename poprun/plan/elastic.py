"""The hosts and numbers of an elastic job, from the hosts that can be used. Pure.

Each attempt is the job that the user would have asked for with these hosts:

- Each host gets the same number of instances, and at most as many as it has slots.
- There are as many instances as that allows, but at most --num-instances. If several
  divisions give that number, the one with the most hosts is taken.
- Each instance keeps its number of replicas, and the total follows. With
  --fixed-replicas the total stays, and the number of instances must divide it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from poprun.errors import OptionError
from poprun.host_specs import HostSpec
from poprun.options.settings import Setting, Settings
from poprun.options.types import AUTO, range_of
from poprun.plan.topology import MOST, Topology, check_rank
from poprun.plan.values import Request
from poprun.words import counted

# Each of these makes a job elastic. The first two say how small it may become.
LIMITS = ("min-instances", "nnodes")
DISCOVERY = "host-discovery-script"
ORIGIN = "the hosts that can be used"
# Each sentence says why the job stops when an instance is lost.
WITH_MPI = (
    "The job cannot go on without lost instances, because mpirun ends the others. "
    "Start it with --mpirun local."
)
WITH_IPUS = (
    "The job cannot go on without lost instances, because it has IPUs, which belong to "
    "all of them. Start it with --offline-mode=yes."
)
WITH_FIXED_REPLICAS = (
    "The job cannot go on without lost instances, because with --fixed-replicas the "
    "others would have to get their replicas."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The numbers that the attempts of an elastic job may have."""

    least_instances: int
    most_instances: int
    least_hosts: int = 1
    most_hosts: int = MOST
    # The slots of a host without a number of them, and the most slots of any host.
    slots: int
    most_slots: int = MOST
    # How many instances each host gets, where instances run already; 0 for any number.
    share: int = 0
    local_replicas: int
    # The number of replicas of every attempt; None where it follows the instances.
    num_replicas: int | None = None
    num_ilds: int = 1

    def allows(self, num_instances: int) -> bool:
        """Return whether the replicas and ILDs can be shared among the instances."""
        total = self.num_replicas
        divides = total is None or total % num_instances == 0
        return divides and num_instances % self.num_ilds == 0

    def replicas_of(self, num_instances: int) -> int:
        """Return how many replicas a job of so many instances has."""
        return self.num_replicas or num_instances * self.local_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The hosts of one attempt, and how many instances they have together."""

    hosts: Sequence[HostSpec]
    num_instances: int

    @property
    def names(self) -> frozenset[str]:
        return frozenset(host.name for host in self.hosts)


def reform_refusal(request: Request, settings: Settings) -> str:
    """Return why instances of an elastic job cannot go on without lost ones, or ""."""
    if request.mpi.has_mpi:
        return WITH_MPI
    if request.partition_options is not None:
        return WITH_IPUS
    return WITH_FIXED_REPLICAS if settings["fixed-replicas"] else ""


def is_elastic(settings: Settings) -> bool:
    return any(map(settings.is_given, (*LIMITS, DISCOVERY)))


def read_bounds(settings: Settings, num_programs: int, num_hosts: int) -> Bounds:
    """Return the bounds that the options set.

    Args:
        num_hosts: How many hosts the user or the discovery script names.

    Raises:
        PoprunError: The options contradict each other.
    """
    if num_programs > 1:
        raise OptionError(
            f"The job has {num_programs} programs, each with its own number of "
            "instances, so its number of instances cannot follow the hosts. Leave "
            f"--{given_option(settings)} out, or name one program."
        )
    most, replicas = settings["num-instances"], settings["num-replicas"]
    if most == AUTO:
        raise OptionError(
            f"The number of instances is auto, but with --{given_option(settings)} it "
            "is the largest number that the job may have. Write a number."
        )
    full = Topology(
        num_instances=most,
        num_replicas=most if replicas == AUTO else replicas,
        ipus_per_replica=settings["ipus-per-replica"],
        num_ilds=settings["num-ilds"],
    )
    least_hosts, most_hosts = _read_hosts(settings, most)
    slots = most // most_hosts if most_hosts else max(1, most // num_hosts)
    least = settings["min-instances"] or least_hosts or most
    if least > most:
        raise OptionError(
            f"--min-instances is {least}, but the job has at most "
            f"{counted(most, 'instance')}. Give at most {most}, or a larger "
            "--num-instances."
        )
    _check_ranks(settings, least)
    return Bounds(
        least_instances=least,
        most_instances=most,
        least_hosts=least_hosts or 1,
        most_hosts=most_hosts or MOST,
        slots=slots,
        most_slots=slots if most_hosts else MOST,
        local_replicas=full.local_replicas,
        num_replicas=full.num_replicas if settings["fixed-replicas"] else None,
        num_ilds=full.num_ilds,
    )


def _check_ranks(settings: Settings, least: int) -> None:
    """Check that the smallest job has all instances named by options."""
    selection, stdin = settings["only-output-from-instance"], settings["stdin"]
    named = {
        "only-output-from-instance": None if selection is None else selection.largest,
        "stdin": int(stdin) if stdin.isascii() and stdin.isdigit() else None,
        "pdb": settings["pdb"],
    }
    for option, rank in named.items():
        if rank is not None:
            hint = f" With --{given_option(settings)} it may become that small."
            check_rank(rank, least, f"--{option} names {rank}", hint)


def check_is_possible(hosts: Sequence[HostSpec], bounds: Bounds) -> None:
    """Check that the whole job fits on these hosts, the only ones that it can have.

    Raises:
        OptionError: It cannot have --num-instances on all of them.
    """
    if len(hosts) < bounds.most_hosts < MOST:
        names = ", ".join(host.name for host in hosts)
        raise OptionError(
            f"The job has all of its instances on {bounds.most_hosts} hosts, the most "
            f"that --nnodes allows, but it can have only {len(hosts)}: {names}. Name "
            f"{bounds.most_hosts} with --host, or allow at most {len(hosts)} with "
            "--nnodes."
        )
    most = choose_members(hosts, bounds).num_instances
    if most != bounds.most_instances:
        raise OptionError(
            f"The job is to have {counted(bounds.most_instances, 'instance')}, but the "
            f"{counted(len(hosts), 'host')} of --host take {most}: each gets the same "
            f"number, and at most its slots. Ask for {most} with --num-instances, or "
            "name more hosts."
        )


def _read_hosts(settings: Settings, most: int) -> tuple[int, int]:
    """Return the smallest and largest number of hosts in --nnodes; 0 without it."""
    if settings["nnodes"] is None:
        return 0, 0
    least_hosts, most_hosts = range_of(settings["nnodes"])
    if most % most_hosts:
        fewer = most - most % most_hosts
        numbers = [n for n in (fewer, fewer + most_hosts) if n]
        raise OptionError(
            f"{counted(most, 'instance')} cannot be shared equally among the "
            f"{counted(most_hosts, 'host')} of --nnodes {settings['nnodes']}. Ask for "
            f"{' or '.join(map(str, numbers))} with --num-instances."
        )
    return least_hosts, most_hosts


def given_option(settings: Settings) -> str:
    """Return the option that makes the job elastic."""
    return next(filter(settings.is_given, (*LIMITS, DISCOVERY)))


def choose_members(hosts: Sequence[HostSpec], bounds: Bounds) -> Members:
    """Return the hosts of an attempt, from those that can be used, in their order.

    It has no hosts if the replicas cannot be shared among any of them.
    """
    slots = [min(host.slots or bounds.slots, bounds.most_slots) for host in hosts]
    best = Members(hosts=(), num_instances=0)
    most_on_one = min(max(slots, default=0), bounds.most_instances)
    shares = [bounds.share] if bounds.share else range(1, most_on_one + 1)
    for share in shares:
        fitting = [h for h, number in zip(hosts, slots, strict=True) if number >= share]
        most = min(len(fitting), bounds.most_hosts, bounds.most_instances // share)
        counts = range(most, bounds.least_hosts - 1, -1)
        numbers = (n for n in counts if bounds.allows(n * share))
        number = next(numbers, 0)
        # The first of equal ones has the most hosts.
        if number * share > best.num_instances:
            best = Members(hosts=fitting[:number], num_instances=number * share)
    return best


def find_growth(
    usable: Sequence[HostSpec],
    members: Members,
    bounds: Bounds,
    leaving: Collection[str] = (),
) -> Members | None:
    """Return the members with which a job has more instances than with those it has.

    Args:
        usable: All hosts that can be used now.
        members: The members of the job now.
        leaving: The hosts among them that do not count: others may take their places.
    """
    if leaving:
        # The hosts that stay and the new ones may each be fewer than the job needs.
        bounds = replace(bounds, least_hosts=1)
        staying = [host for host in members.hosts if host.name not in leaving]
        members = choose_members(staying, bounds)
    if bounds.share:
        # Hosts with running instances stay, even if they are named no longer.
        others = (host for host in usable if host.name not in members.names)
        usable = [*members.hosts, *others]
    larger = choose_members(usable, bounds)
    return larger if larger.num_instances > members.num_instances else None


def settings_with(settings: Settings, members: Members, bounds: Bounds) -> Settings:
    """Return the settings of the job with these hosts and their instances."""
    count = members.num_instances
    values: dict[str, str | int] = {
        "host": ",".join(map(str, members.hosts)),
        "num-instances": count,
        "num-replicas": bounds.replicas_of(count),
    }
    changed = {
        name: Setting(value=value, texts=(str(value),), origin=ORIGIN)
        for name, value in values.items()
    }
    changed["hostfile"] = Setting(value=None)
    return replace(settings, entries={**settings.entries, **changed})
