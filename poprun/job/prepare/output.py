"""How the output of a job is marked, and where it is shown: settings -> Routes."""

import os

from popdist import environment
from poprun.options.settings import Settings
from poprun.plan.values import Plan, Request
from poprun.stdio.routes import Routes


def note_on_terminal(request: Request) -> list[str]:
    """Return a sentence where what is to read the terminal gets no terminal."""
    rank = request.stdin.rank
    if rank is None or not os.isatty(0) or request.facts_of(rank).is_own_host:
        return []
    host = request.host_of(rank).name
    return [
        f"Instance {rank} runs on {host} and gets the lines that are typed by a pipe, "
        "which is no terminal for the program: what it asks for as a password is "
        f"shown. Start poprun on {host} to give it a terminal."
    ]


def routes(plan: Plan, settings: Settings) -> Routes:
    """Return how the output of an attempt is marked, and where it is shown."""
    request = plan.request
    arguments, folder = request.arguments.job, request.output_folder
    ranks = range(request.topology.num_instances)
    has_several_hosts = len(request.hosts) > 1
    return Routes(
        tag=arguments.tag_output,
        hosts=tuple(request.host_of(r).name for r in ranks if has_several_hosts),
        timestamp=arguments.timestamp_output,
        xml=arguments.xml,
        merged=arguments.merge_stderr,
        only_instance=settings["only-output-from-instance"],
        directory=None if folder is None else folder.of_attempt(plan.attempt.number),
        only_files=folder is not None and folder.only_files,
        terminal_reader=request.stdin.rank if os.isatty(0) else None,
        library=os.path.dirname(environment.__file__),
    )
