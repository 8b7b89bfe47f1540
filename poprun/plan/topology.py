"""How the replicas of a job are divided among its instances, ILDs and hosts.

A Topology is checked when it is made, so its users need not check it again.
It knows numbers only, neither the hosts' names nor the machine's cores.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from math import lcm

from popdist.environment import Instance
from poprun.errors import OptionError, TopologyError
from poprun.words import counted

# The largest IPU systems that were ever announced had this many IPUs. It bounds
# every number of a topology, and with it the memory that a plan takes.
MOST = 65536

_NOUNS = {
    "num_instances": "instance",
    "num_replicas": "replica",
    "ipus_per_replica": "IPU",
    "num_ilds": "ILD",
    "num_hosts": "host",
}

# Each first number is shared out equally among the second. It follows that there
# are no more instances than replicas, at least one instance on every host and in
# every ILD, and as many replicas in one ILD as in another.
_SHARES = (
    ("num_replicas", "num_instances"),
    ("num_instances", "num_hosts"),
    ("num_instances", "num_ilds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How many of everything a job has; blocks of neighbours belong together."""

    num_instances: int = 1
    num_replicas: int = 1
    ipus_per_replica: int = 1
    num_ilds: int = 1
    num_hosts: int = 1

    def __post_init__(self) -> None:
        counts = asdict(self)
        _check_each(counts)
        _check_num_ipus(counts)
        for shared, among in _SHARES:
            if counts[shared] % counts[among]:
                raise TopologyError(
                    f"{_count(counts[shared], shared)} cannot be shared equally among "
                    f"{_count(counts[among], among)}. {_advice(counts, shared, among)}"
                )

    @property
    def local_replicas(self) -> int:
        """How many replicas each instance owns."""
        return self.num_replicas // self.num_instances

    @property
    def num_ipus(self) -> int:
        """How many IPUs the job's partition has."""
        return self.num_replicas * self.ipus_per_replica

    @property
    def ipus_per_instance(self) -> int:
        return self.local_replicas * self.ipus_per_replica

    @property
    def instances_per_host(self) -> int:
        return self.num_instances // self.num_hosts

    def host_of(self, rank: int) -> int:
        return rank // self.instances_per_host

    def ranks_on(self, host: int) -> range:
        """Return the ranks of the instances on a host."""
        first = host * self.instances_per_host
        return range(first, first + self.instances_per_host)

    def ild_of(self, rank: int) -> int:
        return rank // (self.num_instances // self.num_ilds)

    def local_index(self, rank: int) -> int:
        """Return the index of an instance among those on the same host."""
        return rank % self.instances_per_host

    def replicas_of(self, rank: int) -> range:
        first = rank * self.local_replicas
        return range(first, first + self.local_replicas)

    def instances(self) -> list[Instance]:
        """Describe each instance as it will see itself, in rank order."""
        return [
            Instance(
                num_total_replicas=self.num_replicas,
                num_ipus_per_replica=self.ipus_per_replica,
                num_local_replicas=self.local_replicas,
                replica_index_offset=self.replicas_of(rank).start,
                local_instance_index=self.local_index(rank),
            )
            for rank in range(self.num_instances)
        ]


def check_rank(rank: int, num_instances: int, problem: str, hint: str = "") -> None:
    """Check that a job has an instance of this number.

    Args:
        problem: How the error begins: the option and its value.
        hint: How it ends.
    """
    if rank >= num_instances:
        last = num_instances - 1
        numbers = f"a number from 0 to {last}" if last else "0"
        raise OptionError(
            f"{problem}, but the job has only {counted(num_instances, 'instance')}. "
            f"Give {numbers}.{hint}"
        )


def _check_each(counts: Mapping[str, int]) -> None:
    for name, value in counts.items():
        if not 1 <= value <= MOST:
            way_out = "1 or more" if value < 1 else f"{MOST} or fewer"
            per = " per replica" if name == "ipus_per_replica" else ""
            raise TopologyError(
                f"The number of {_NOUNS[name]}s{per} is {value}, but must be from 1 to "
                f"{MOST}. Ask for {way_out}."
            )


def _check_num_ipus(counts: Mapping[str, int]) -> None:
    num_ipus = counts["num_replicas"] * counts["ipus_per_replica"]
    if num_ipus <= MOST:
        return
    ways = [f"{_count(MOST // counts['num_replicas'], 'ipus_per_replica')} per replica"]
    # Fewer replicas are a way out only if the instances can still share them.
    ways += [_count(n, "num_replicas") for n in _nearest(counts, "num_replicas")]
    replicas = _count(counts["num_replicas"], "num_replicas")
    ipus = _count(counts["ipus_per_replica"], "ipus_per_replica")
    raise TopologyError(
        f"{replicas} of {ipus} each need {num_ipus} IPUs, but a job has at most "
        f"{MOST}. Ask for {', or for '.join(ways)}."
    )


def _fits(counts: Mapping[str, int]) -> bool:
    return counts["num_replicas"] * counts["ipus_per_replica"] <= MOST and not any(
        counts[shared] % counts[among] for shared, among in _SHARES
    )


def _nearest(counts: Mapping[str, int], name: str) -> list[int]:
    """Return what fits in one number's place: the next below, the next above."""
    # Only multiples of these numbers can fit: a search in steps takes milliseconds.
    step = {
        "num_replicas": counts["num_instances"],
        "num_instances": lcm(counts["num_hosts"], counts["num_ilds"]),
    }.get(name, 1)
    first = counts[name] // step * step
    ranges = range(first, 0, -step), range(first + step, MOST + 1, step)
    fitting = ((n for n in r if _fits({**counts, name: n})) for r in ranges)
    return [n for numbers in fitting for n in islice(numbers, 1)]


def _advice(counts: Mapping[str, int], shared: str, among: str) -> str:
    """Say what to ask for instead; every answer is one that will be accepted."""
    nearest = _nearest(counts, shared)
    if nearest:
        return f"Ask for {_choice(nearest, shared)}."

    # No such number goes with the other numbers, so another one has to give way.
    ways = []
    if nearest := _nearest(counts, among):
        ways.append(_choice(nearest, among))
    # The next more instances and replicas that hosts and ILDs can share.
    step = lcm(counts["num_hosts"], counts["num_ilds"])
    instances = _round_up(counts["num_instances"], step)
    replicas = _round_up(counts["num_replicas"], instances)
    has_room = replicas * counts["ipus_per_replica"] <= MOST
    if has_room and not (ways and among == "num_instances"):
        ways.append(
            f"{_count(instances, 'num_instances')} and "
            f"{_count(replicas, 'num_replicas')}"
        )
    if not ways:
        # Without further hosts and ILDs, as many instances as replicas always fit.
        replicas = counts["num_replicas"]
        ways = [f"1 host, 1 ILD and {_count(replicas, 'num_instances')}"]
    return f"Ask for {', or for '.join(ways)}."


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _choice(numbers: list[int], name: str) -> str:
    *others, last = numbers
    return "".join(f"{n} or " for n in others) + _count(last, name)


def _count(number: int, name: str) -> str:
    return counted(number, _NOUNS[name])
