"""`vipu show`: a picture of each cluster, and who holds what."""

import os
import sys
import time
from collections.abc import Mapping

import click

from poprun.texts.click_program import Seconds
from poprun.texts.stdout import write
from poprun.vipu.commands.command_line import Command
from poprun.vipu.commands.nouns import names_of, read_states
from poprun.vipu.commands.session import Session
from poprun.vipu.commands.views import pod_picture
from poprun.vipu.commands.views.pod_picture import ClusterState
from poprun.vipu.commands.views.text_tables import json_value
from poprun.vipu.inventory.interface import Inventory

# Move to the upper left corner, and erase all from there on.
_CLEAR = "\x1b[H\x1b[J"


@click.command("show", cls=Command)
@click.argument("clusters", nargs=-1, shell_complete=names_of("cluster"))
@click.option("--watch", is_flag=True, help="Redraw the picture until Ctrl-C.")
@click.option(
    "--interval",
    type=Seconds(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="TIME",
    help="The time between two pictures of --watch.",
)
@click.pass_obj
def show(
    session: Session, clusters: tuple[str, ...], watch: bool, interval: float
) -> None:
    """Draw the clusters with the holders of their IPUs."""
    is_terminal = _is_terminal(session.environ)
    in_colour = is_terminal and not session.environ.get("NO_COLOR")
    while True:
        with session.open() as inventory:
            states = _read(inventory, clusters)
            waiting = inventory.list_waiting()
        if session.as_json:
            jobs = [json_value(pod_picture.WAITING_JSON, job) for job in waiting]
            pictures = list(map(pod_picture.state_value, states))
            session.write_json({"clusters": pictures, "waiting": jobs})
        else:
            parts = [pod_picture.draw(state, in_colour=in_colour) for state in states]
            parts += filter(None, [pod_picture.draw_waiting(waiting)])
            text = "\n".join(parts) or "There is no cluster.\n"
            write(_CLEAR + text if watch and is_terminal else text)
        if not watch:
            return
        time.sleep(interval)


def _read(inventory: Inventory, names: tuple[str, ...]) -> list[ClusterState]:
    clusters = map(inventory.get_cluster, names) if names else inventory.list_clusters()
    states = read_states(inventory, tuple(clusters))
    partitions = inventory.list_partitions()
    reservations = inventory.list_reservations()
    for number, state in enumerate(states):
        own = tuple(p for p in partitions if p.cluster == state.cluster.name)
        states[number] = state._replace(partitions=own, reservations=reservations)
    return states


def _is_terminal(environ: Mapping[str, str]) -> bool:
    is_dumb = environ.get("TERM", "dumb") in ("", "dumb")
    try:
        return not is_dumb and sys.stdout is not None and os.isatty(sys.stdout.fileno())
    except (OSError, ValueError):  # it is no file, or closed
        return False
