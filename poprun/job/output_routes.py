"""How the output of a job is marked, and where it is shown: settings -> Routes."""

import os
from collections.abc import Callable, Mapping, Sequence

from popdist import environment
from poprun.color import is_dumb, uses_color
from poprun.job.values import Job
from poprun.options.settings import Settings
from poprun.output import terminal
from poprun.output.lines.screen import Screen
from poprun.output.lines.tags import POPRUN, Writer
from poprun.output.router import OutputRouter
from poprun.output.routes import Routes
from poprun.output.selection import Selection
from poprun.output.stream_ends import STREAMS
from poprun.plan.values import Plan, Request


def note_on_terminal(request: Request) -> list[str]:
    """Return a note if a remote instance is to read poprun's terminal."""
    rank = request.stdin.rank
    if rank is None or not os.isatty(0) or request.assignments[rank].facts.is_own_host:
        return []
    host = request.assignments[rank].host.name
    return [
        f"Instance {rank} runs on {host}, so it reads what you type from a pipe "
        "instead of a terminal: a password is shown as you type it. Start poprun on "
        f"{host} to give it a terminal."
    ]


def routes(plan: Plan, settings: Settings, environ: Mapping[str, str]) -> Routes:
    """Return how the output of an attempt is marked, and where it is shown."""
    request = plan.request
    arguments, folder = request.arguments, request.output_folder
    template, template_streams = _template(request, settings)
    colored = [
        stream
        for number, stream in enumerate(STREAMS, start=1)
        if uses_color(settings["color"], environ, number)
    ]
    return Routes(
        tag=arguments.tag_output,
        timestamp=arguments.timestamp_output,
        xml=arguments.xml,
        template=template,
        template_streams=template_streams,
        writers=_writers(request, settings["tag-format"]),
        colored_streams=colored,
        merged=arguments.merge_stderr,
        selection=settings["only-output-from-instance"] or Selection(),
        directory=None if folder is None else folder.of_attempt(plan.attempt.number),
        only_files=folder is not None and folder.only_files,
        terminal_reader=request.stdin.rank if os.isatty(0) else None,
        is_quiet=settings["quiet"],
        library=os.path.dirname(environment.__file__),
    )


def make_router(
    job: Job,
    environ: Mapping[str, str],
    status: Callable[[float, float], str] | None,
) -> OutputRouter:
    """Return the router of an attempt's output to poprun's own streams.

    Args:
        status: Returns the status line of the job; None for no line.
    """
    # The text that the user types on the terminal would appear after the status.
    is_typed_in = job.stdin.is_own and os.isatty(0)
    has_status = terminal.has_status_line(environ) and not is_typed_in
    columns = terminal.own_size()[1]
    screens = {
        stream: Screen(columns)
        for number, stream in enumerate(STREAMS, start=1)
        if os.isatty(number) and not is_dumb(environ)
    }
    return OutputRouter(
        job.routes, screens=screens, status=status if has_status else None
    )


def _template(request: Request, settings: Settings) -> tuple[str, Sequence[str]]:
    """Return the template of the tags on the console, and the streams with tags."""
    form = settings["tag-format"]
    if form == "auto":
        arguments = request.arguments
        streams = [s for n, s in enumerate(STREAMS, start=1) if os.isatty(n)]
        selection = settings["only-output-from-instance"] or Selection()
        shown = [rank for rank in _ranks(request) if rank in selection]
        is_single = len(shown) == 1 and not selection.failed
        if arguments.tag_output or arguments.timestamp_output or is_single:
            return "", ()
        return _short_template(request), streams
    forms = {
        "none": "",
        "short": _short_template(request),
        "poprun": POPRUN,
    }
    return forms.get(form, form), STREAMS


def _short_template(request: Request) -> str:
    """Return a template for tags of one width: `0| `, or `12@node1| `."""
    digits = len(str(request.topology.num_instances - 1))
    if len(request.hosts) == 1:
        return f"{{instance:{digits}}}| "
    width = max(map(len, _short_names([host.name for host in request.hosts])))
    return f"{{instance:{digits}}}@{{host:{min(width, 99)}}}| "


def _writers(request: Request, form: str) -> list[Writer]:
    names = [host.name for host in request.hosts]
    if form in ("auto", "short"):
        names = _short_names(names)
    share = request.topology.instances_per_host
    return [
        Writer(
            instance=rank,
            stream="",
            host=names[request.topology.host_of(rank)],
            local_instance=rank % share,
        )
        for rank in _ranks(request)
    ]


def _short_names(names: Sequence[str]) -> list[str]:
    """Return the names of hosts without their domain, if they are names and differ."""
    short = [name.partition(".")[0] for name in names]
    are_names = not any(name.isdigit() for name in short)
    return short if are_names and len(set(short)) == len(names) else list(names)


def _ranks(request: Request) -> range:
    return range(request.topology.num_instances)
