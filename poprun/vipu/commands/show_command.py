"""`vipu show`: a picture of each cluster, with the holders of its IPUs.

An IPU is a character. A partition has a letter, in capitals where a job holds the IPU.
"""

import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from string import ascii_lowercase
from typing import Any, NamedTuple

import click

from poprun import color
from poprun.texts.click_program import Seconds
from poprun.vipu.commands import tables, views
from poprun.vipu.commands.command_line import Command, complete, option
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views import ClusterUse, PartitionUse
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, AgentStatus
from poprun.vipu.rules.numbering import positions

# Move to the upper left corner, and erase all from there on.
_CLEAR = "\x1b[H\x1b[J"
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
    free: bool
    # None for an IPU without a partition, or in a partition that the user may not see.
    partition: str | None
    held: bool


def _show(
    session: Session, clusters: tuple[str, ...], watch: bool, interval: float
) -> None:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    is_dumb = color.is_dumb(session.environ)
    in_colour = is_terminal and color.uses_color("auto", session.environ, 1)
    start = _CLEAR if watch and is_terminal and not is_dumb else ""
    while True:
        result = _read(session, clusters, in_colour=in_colour)
        session.show(start + result if isinstance(result, str) else result)
        if not watch:
            return
        session.close()
        time.sleep(interval)


def _read(session: Session, names: tuple[str, ...], *, in_colour: bool) -> object:
    inventory = session.inventory
    clusters = map(inventory.get_cluster, names) if names else inventory.list_clusters()
    partitions = views.read_partitions(inventory, inventory.list_partitions())
    pods = [views.read_cluster(inventory, each, partitions) for each in clusters]
    waiting = inventory.list_waiting()
    if session.as_json:
        jobs = tables.list_json(_WAITING, waiting)
        return {"clusters": list(map(_picture_json, pods)), "waiting": jobs}
    parts = [_draw(use, in_colour=in_colour) for use in pods]
    if waiting:
        rows = [[str(n), *tables.cells(_WAITING, j)] for n, j in enumerate(waiting, 1)]
        parts.append(tables.format_table(rows, ["Waiting", *tables.header(_WAITING)]))
    return "\n".join(parts) or "There is no cluster.\n"


def _ipus_of(use: ClusterUse) -> list[Ipu]:
    """Return the use of each IPU of a cluster, in the order of positions."""
    free = {position for block in use.free for position in block.positions}
    names: dict[int, str] = {}
    held: set[int] = set()
    for each in use.partitions:
        own = positions(each.partition)
        names |= dict.fromkeys(own, each.partition.name)
        held |= {own[index] for r in each.reservations for index in r.device.ipus}
    return [
        Ipu(ipu, position in free, names.get(position), position in held)
        for position, ipu in enumerate(use.ipus)
    ]


def _picture_json(use: ClusterUse) -> dict[str, Any]:
    """Return a cluster and the use of its IPUs for JSON."""
    return {
        "id": use.cluster.name,
        "size": use.cluster.size,
        "free": use.num_free,
        "largest_free": use.largest_free,
        "ipu_link_domains": use.by_ild([ipu._asdict() for ipu in _ipus_of(use)]),
        "partitions": [views.partition_json(p)["partition"] for p in use.partitions],
    }


def _draw(use: ClusterUse, *, in_colour: bool) -> str:
    """Return the picture of a cluster, and a table of its partitions."""
    paint = _in_colours if in_colour else str
    cluster, ipus = use.cluster, _ipus_of(use)
    partitions = (each.partition.name for each in use.partitions)
    letters = dict(zip(partitions, cycle(ascii_lowercase), strict=False))
    cells = [_cell(ipu, letters) for ipu in ipus]
    text = f"{cluster.name}: {cluster.size} IPUs, {use.free_text(' free')}\n"
    per_ild = cluster.ild_size // IPUS_PER_MACHINE
    # A line has machines of one ILD only.
    lines = [
        use.agents[first : min(first + _MACHINES_PER_LINE, end)]
        for end in range(per_ild, len(use.agents) + 1, per_ild)
        for first in range(end - per_ild, end, _MACHINES_PER_LINE)
    ]
    width = max(len(_label(agents)) for agents in lines)
    for agents in lines:
        ild, offset = divmod(agents[0].positions.start, cluster.ild_size)
        if cluster.num_ilds > 1 and offset == 0:
            text += f" ILD {ild}\n"
        machines = ["".join(cells[n] for n in agent.positions) for agent in agents]
        down = [a for a in agents if a.status is not AgentStatus.UP]
        trouble = ", ".join(f"{agent.name} is {agent.status}" for agent in down)
        line = f" {_label(agents):{width}}  {paint(' '.join(machines))}  {trouble}"
        text += f"{line.rstrip()}\n"
    if use.partitions:
        held = Counter(ipu.partition for ipu in ipus if ipu.held)
        rows = [row for each in use.partitions for row in _legend(each, letters, held)]
        names = ["", "Partition", "Size", "Held", "State", *tables.header(views.HOLDER)]
        table = tables.format_table(rows, names)
        text += "\n" + re.sub("(?m)^ [A-Z]", lambda match: paint(match[0]), table)
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


def _cell(ipu: Ipu, letters: Mapping[str, str]) -> str:
    if ipu.partition is None:
        return "." if ipu.free else "#"
    letter = letters[ipu.partition]
    return letter.upper() if ipu.held else letter


def _in_colours(text: str) -> str:
    """Colour the letters: black on the colour for held IPUs, else the colour alone."""

    def paint(match: re.Match[str]) -> str:
        letter = match[0]
        colour = _COLOURS[ascii_lowercase.index(letter.lower()) % len(_COLOURS)]
        return color.paint(letter, f"{'30;4' if letter.isupper() else 3}{colour}")

    return re.sub("[A-Za-z]", paint, text)


_INTERVAL = {"type": Seconds(0.1, 3600), "metavar": "TIME"}
_INTERVAL_HELP = "The time between two pictures of --watch."
show = Command(
    "show",
    help="Draw the clusters with the holders of their IPUs.",
    callback=click.pass_obj(_show),
    params=[
        click.Argument(["clusters"], nargs=-1, shell_complete=complete),
        option("--watch", bool, "Redraw the picture until Ctrl-C."),
        option("--interval", _INTERVAL, _INTERVAL_HELP, default=2.0, show_default=True),
    ],
)
