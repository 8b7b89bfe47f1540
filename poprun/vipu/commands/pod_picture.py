"""A picture of a cluster: a character and a user for each IPU, as text or JSON. Pure.

A partition has a letter, in capitals where a job holds the IPU.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Any, NamedTuple

from poprun import color
from poprun.vipu.commands import tables, views
from poprun.vipu.commands.uses import ClusterUse, PartitionUse
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, AgentStatus
from poprun.vipu.requests import WaitingJob
from poprun.vipu.rules.numbering import positions

_MACHINES_PER_LINE = 8
# Red means trouble, black and white are the terminal's own.
_COLOURS = (2, 3, 4, 5, 6)
# The fields of a waiting job.
_WAITING: tables.Fields = (
    ("IPUs", "num_ipus", "num_ipus"),
    ("Partition", "", "partition"),
    ("", "partition", lambda job: job.partition or None),
    *views.HOLDER,
)


class Ipu(NamedTuple):
    """The use of an IPU."""

    id: str
    free: bool = False
    # None for an IPU without a partition, or in a partition that the user may not see.
    partition: str | None = None
    held: bool = False


def _ipus_of(use: ClusterUse) -> list[Ipu]:
    """Return the use of each IPU of a cluster, in the order of positions."""
    ipus = list(map(Ipu, use.ipus))
    for block in use.free:
        for position in block.positions:
            ipus[position] = ipus[position]._replace(free=True)
    for each in use.partitions:
        held = {index for r in each.reservations for index in r.device.ipus}
        for index, position in enumerate(positions(each.partition)):
            name = each.partition.name
            ipus[position] = Ipu(ipus[position].id, False, name, index in held)
    return ipus


def _picture_json(use: ClusterUse) -> dict[str, Any]:
    """Return a cluster and the use of its IPUs for JSON."""
    ipus, size = [ipu._asdict() for ipu in _ipus_of(use)], use.cluster.ild_size
    firsts = range(0, len(ipus), size)
    return {
        "id": use.cluster.name,
        "size": use.cluster.size,
        "free": use.num_free,
        "largest_free": use.largest_free,
        "ipu_link_domains": [{"ipus": ipus[n : n + size]} for n in firsts],
        "partitions": [views.partition_json(p)["partition"] for p in use.partitions],
    }


def all_json(
    uses: Sequence[ClusterUse], waiting: Sequence[WaitingJob]
) -> dict[str, Any]:
    """Return clusters and the jobs that wait for IPUs for JSON."""
    jobs = [tables.to_json(_WAITING, job) for job in waiting]
    return {"clusters": list(map(_picture_json, uses)), "waiting": jobs}


def draw(use: ClusterUse, *, in_colour: bool) -> str:
    """Return the picture of a cluster, and a table of its partitions."""
    paint = _in_colours if in_colour else str
    cluster, ipus = use.cluster, _ipus_of(use)
    letters = {each.partition.name: _letter(n) for n, each in enumerate(use.partitions)}
    cells = "".join(_cell(ipu, letters) for ipu in ipus)
    text = f"{cluster.name}: {cluster.size} IPUs, {use.free_text(' free')}\n"
    per_ild = cluster.ild_size // IPUS_PER_MACHINE
    # A line has machines of one ILD only.
    spans = [
        slice(first, min(first + _MACHINES_PER_LINE, end))
        for end in range(per_ild, len(use.agents) + 1, per_ild)
        for first in range(end - per_ild, end, _MACHINES_PER_LINE)
    ]
    width = max(len(_label(use.agents[span])) for span in spans)
    for span in spans:
        if cluster.num_ilds > 1 and span.start % per_ild == 0:
            text += f" ILD {span.start // per_ild}\n"
        agents = use.agents[span]
        own = cells[span.start * IPUS_PER_MACHINE : span.stop * IPUS_PER_MACHINE]
        machines = " ".join(re.findall(f".{{{IPUS_PER_MACHINE}}}", own))
        down = [a for a in agents if a.status is not AgentStatus.UP]
        trouble = ", ".join(f"{agent.name} is {agent.status}" for agent in down)
        line = f" {_label(agents):{width}}  {paint(machines)}  {trouble}"
        text += f"{line.rstrip()}\n"
    if use.partitions:
        held = Counter(ipu.partition for ipu in ipus if ipu.held)
        rows = [row for each in use.partitions for row in _legend(each, letters, held)]
        names = ["", "Partition", "Size", "Held", "State", *tables.header(views.HOLDER)]
        table = tables.format_table(rows, names)
        text += "\n" + re.sub("(?m)^ [A-Z]", lambda found: paint(found[0]), table)
    return text + ("# is in use by others.\n" if "#" in cells else "")


def _legend(
    use: PartitionUse, letters: Mapping[str, str], held: Mapping[str | None, int]
) -> list[list[str]]:
    partition = use.partition
    name, state = partition.name, partition.state.name
    first = [letters[name].upper(), name, str(partition.size), str(held[name]), state]
    created = views.local_time(partition.created)
    unused = (partition.owner or "-", "-", "-", "-", created)
    return views.holder_rows(first, use.leases, unused)


def _label(agents: Sequence[Agent]) -> str:
    first, last = agents[0].name, agents[-1].name
    return first if first == last else f"{first} to {last}"


def _letter(number: int) -> str:
    return ascii_lowercase[number % len(ascii_lowercase)]


def _cell(ipu: Ipu, letters: Mapping[str, str]) -> str:
    if ipu.partition is None:
        return "." if ipu.free else "#"
    letter = letters[ipu.partition]
    return letter.upper() if ipu.held else letter


def _in_colours(text: str) -> str:
    """Colour the letters: black on the colour for held IPUs, else the colour alone."""

    def paint(found: re.Match[str]) -> str:
        letter = found[0]
        colour = _COLOURS[ascii_lowercase.index(letter.lower()) % len(_COLOURS)]
        code = f"30;4{colour}" if letter.isupper() else f"3{colour}"
        return color.paint(letter, code)

    return re.sub("[A-Za-z]", paint, text)


def draw_waiting(jobs: Sequence[WaitingJob]) -> str:
    """Return the table of the jobs that wait for IPUs."""
    rows = [[str(n), *tables.cells(_WAITING, job)] for n, job in enumerate(jobs, 1)]
    return tables.format_table(rows, ["Waiting", *tables.header(_WAITING)])
