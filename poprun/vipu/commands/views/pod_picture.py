"""A picture of a cluster: a character and a user for each IPU, as text or JSON. Pure.

A partition has a letter; it is a capital where a job holds the IPU.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from poprun.vipu.commands.views import partition_views as views
from poprun.vipu.commands.views.text_tables import Columns, cells_of, format_table
from poprun.vipu.leases import Reservation
from poprun.vipu.model import (
    IPUS_PER_MACHINE,
    Agent,
    AgentStatus,
    Block,
    Cluster,
    Partition,
)
from poprun.vipu.requests import WaitingJob
from poprun.vipu.rules.numbering import positions

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FREE, _OTHER = ".", "#"
_MACHINES_PER_LINE = 8
# Red means trouble, black and white are the terminal's own.
_COLOURS = (2, 3, 4, 5, 6)

_WAITING: Columns = {
    "IPUs": "num_ipus",
    "Partition": "partition",
    **{name: views.HOLDERS[name] for name in ("User", "Job", "Host", "Since")},
}
WAITING_JSON: Columns = {
    **{name: views.HOLDER_JSON[name] for name in ("user", "job", "host", "since")},
    "num_ipus": "num_ipus",
    "partition": lambda job: job.partition or None,
}


class ClusterState(NamedTuple):
    """A cluster, and what is known of the use of its IPUs."""

    cluster: Cluster
    agents: tuple[Agent, ...]
    free: tuple[Block, ...]
    # Those that the user may see.
    partitions: tuple[Partition, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    @property
    def num_free(self) -> int:
        return sum(block.size for block in self.free)

    @property
    def largest_free(self) -> int:
        """How many of the free IPUs are next to each other, at most."""
        return max((block.size for block in self.free), default=0)


class Ipu(NamedTuple):
    """The use of an IPU."""

    # By its place in the list of partitions; None without one that the user sees.
    partition: int | None = None
    is_held: bool = False
    is_free: bool = False


def free_text(state: ClusterState, noun: str = "") -> str:
    """Return how many IPUs are free: `12, at most 8 next to each other`."""
    total, largest = state.num_free, state.largest_free
    more = f", at most {largest} next to each other" if largest < total else ""
    return f"{total}{noun}{more}"


def ipus_of(state: ClusterState) -> list[Ipu]:
    """Return the use of each IPU of a cluster, in the order of positions."""
    ipus = [Ipu()] * state.cluster.size
    for block in state.free:
        ipus[block.first : block.end] = [Ipu(is_free=True)] * block.size
    reserved: dict[str, set[int]] = {}
    for each in state.reservations:
        reserved.setdefault(each.partition, set()).update(each.device.ipus)
    for number, partition in enumerate(state.partitions):
        indices = reserved.get(partition.name, set())
        for index, position in enumerate(positions(partition)):
            ipus[position] = Ipu(number, index in indices)
    return ipus


def draw(state: ClusterState, *, in_colour: bool) -> str:
    """Return the picture of a cluster, and a table of its partitions."""
    cluster, ipus = state.cluster, ipus_of(state)
    cells = [_cell(ipu, in_colour=in_colour) for ipu in ipus]
    lines = [f"{cluster.name}: {cluster.size} IPUs, {free_text(state, ' free')}"]
    machines = cluster.ild_size // IPUS_PER_MACHINE  # of an ILD
    # A line has machines of one ILD only.
    spans = [
        slice(first, min(first + _MACHINES_PER_LINE, (ild + 1) * machines))
        for ild in range(cluster.num_ilds)
        for first in range(ild * machines, (ild + 1) * machines, _MACHINES_PER_LINE)
    ]
    width = max(len(_label(state.agents[span])) for span in spans)
    for span in spans:
        agents = state.agents[span]
        if cluster.num_ilds > 1 and span.start % machines == 0:
            lines.append(f" ILD {span.start // machines}")
        of_machines = [
            "".join(cells[number * IPUS_PER_MACHINE :][:IPUS_PER_MACHINE])
            for number in range(span.start, span.stop)
        ]
        trouble = ", ".join(
            f"{agent.name} is {agent.status}"
            for agent in agents
            if agent.status is not AgentStatus.UP
        )
        line = f" {_label(agents):{width}}  {' '.join(of_machines)}  {trouble}"
        lines.append(line.rstrip())
    text = "\n".join(lines) + "\n"
    if state.partitions:
        text += "\n" + _legend(state, ipus, in_colour=in_colour)
    if Ipu() in ipus:
        text += f"{_OTHER} is in use by others.\n"
    return text


def draw_waiting(jobs: Sequence[WaitingJob]) -> str:
    """Return the table of the jobs that wait for IPUs; empty if none does."""
    if not jobs:
        return ""
    rows = [(str(n), *cells_of(_WAITING, job)) for n, job in enumerate(jobs, start=1)]
    return format_table(("Waiting", *_WAITING), rows)


def state_value(state: ClusterState) -> dict[str, Any]:
    """Return a cluster and the use of its IPUs for JSON."""
    cluster, names = state.cluster, views.names_by_machine(state.agents)
    reservations = views.by_partition(state.reservations)
    ipus = []
    for position, ipu in enumerate(ipus_of(state)):
        (name,) = views.ipu_names([position], names)
        partition = (
            None if ipu.partition is None else state.partitions[ipu.partition].name
        )
        value = {"id": name, "free": ipu.is_free, "partition": partition}
        ipus.append({**value, "held": ipu.is_held})
    return {
        "id": cluster.name,
        "size": cluster.size,
        "free": state.num_free,
        "largest_free": state.largest_free,
        "ipu_link_domains": [
            {"ipus": ipus[first : first + cluster.ild_size]}
            for first in range(0, cluster.size, cluster.ild_size)
        ],
        "partitions": [
            views.partition_value(each, reservations.get(each.name, ()), names)
            for each in state.partitions
        ],
    }


def _label(agents: Sequence[Agent]) -> str:
    first, last = agents[0].name, agents[-1].name
    return first if first == last else f"{first} to {last}"


def _cell(ipu: Ipu, *, in_colour: bool) -> str:
    if ipu.partition is None:
        return _FREE if ipu.is_free else _OTHER
    letter = _LETTERS[ipu.partition % len(_LETTERS)]
    text = letter.upper() if ipu.is_held else letter
    if not in_colour:
        return text
    colour = _COLOURS[ipu.partition % len(_COLOURS)]
    # Black on the colour for what is held, the colour alone for what is only kept.
    return f"\x1b[{f'30;4{colour}' if ipu.is_held else f'3{colour}'}m{text}\x1b[0m"


def _legend(state: ClusterState, ipus: Sequence[Ipu], *, in_colour: bool) -> str:
    holders = views.holders_of(state.reservations)
    num_held = Counter(ipu.partition for ipu in ipus if ipu.is_held)
    rows: list[tuple[str, ...]] = []
    numbers = {}  # of partitions, by the first row of each
    for number, partition in enumerate(state.partitions):
        numbers[len(rows)] = number
        letter = _cell(Ipu(number, is_held=True), in_colour=False)
        numbers_of_ipus = str(partition.size), str(num_held[number])
        cells = (letter, partition.name, *numbers_of_ipus, partition.state.name)
        created = views.local_time(partition.created)
        without_holder = (partition.owner or "-", "-", "-", "-", created)
        rows += views.rows_of_holders(
            cells, holders.get(partition.name, ()), without_holder
        )
    header = ("", "Partition", "Size", "Held", "State", *views.HOLDERS)
    head, rule, *lines = format_table(header, rows).splitlines()
    if in_colour:
        # The letter of a row is in the colour of its partition.
        for row, number in numbers.items():
            cell = _cell(Ipu(number, is_held=True), in_colour=True)
            lines[row] = f" {cell}{lines[row][2:]}"
    return "\n".join([head, rule, *lines]) + "\n"
