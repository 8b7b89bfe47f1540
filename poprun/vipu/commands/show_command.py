"""`vipu show`: a picture of each cluster, and the holders of its IPUs."""

import sys
import time

import click

from poprun.color import is_dumb, uses_color
from poprun.texts.click_program import Seconds
from poprun.vipu.commands import pod_picture as pictures
from poprun.vipu.commands.command_line import FLAG, Command, complete, option
from poprun.vipu.commands.session import Session, Shown
from poprun.vipu.commands.uses import read_cluster, read_partitions

# Move to the upper left corner, and erase all from there on.
_CLEAR = "\x1b[H\x1b[J"
_INTERVAL = {"type": Seconds(0.1, 3600), "default": 2.0, "show_default": True}


def _show(
    session: Session, clusters: tuple[str, ...], watch: bool, interval: float
) -> None:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    in_colour = is_terminal and uses_color("auto", session.environ, 1)
    start = _CLEAR if watch and is_terminal and not is_dumb(session.environ) else ""
    while True:
        session.show(*_read(session, clusters, start, in_colour=in_colour))
        if not watch:
            return
        session.close()
        time.sleep(interval)


def _read(
    session: Session, names: tuple[str, ...], start: str, *, in_colour: bool
) -> Shown:
    inventory, uses = session.inventory, []
    clusters = map(inventory.get_cluster, names) if names else inventory.list_clusters()
    partitions = read_partitions(inventory, inventory.list_partitions())
    for cluster in clusters:
        own = [use for use in partitions if use.partition.cluster == cluster.name]
        uses.append(read_cluster(inventory, cluster)._replace(partitions=own))
    waiting = inventory.list_waiting()

    def text() -> str:
        parts = [pictures.draw(use, in_colour=in_colour) for use in uses]
        parts += [pictures.draw_waiting(waiting)] if waiting else []
        return start + ("\n".join(parts) or "There is no cluster.\n")

    return lambda: pictures.all_json(uses, waiting), text


show = Command(
    "show",
    help="Draw the clusters with the holders of their IPUs.",
    callback=click.pass_obj(_show),
    params=[
        click.Argument(["clusters"], nargs=-1, shell_complete=complete),
        option("--watch", FLAG, "Redraw the picture until Ctrl-C."),
        option(
            *("--interval", _INTERVAL, "The time between two pictures of --watch."),
            metavar="TIME",
        ),
    ],
)
