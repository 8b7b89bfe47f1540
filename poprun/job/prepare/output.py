"""Where the output of a job goes: Request and settings -> Routes, OutputRouter."""

import os
from collections.abc import Callable, Mapping

from popdist import environment
from poprun.errors import OptionError
from poprun.options.settings import Settings
from poprun.plan.values import Request
from poprun.stdio import terminal
from poprun.stdio.router import OutputRouter, Routes
from poprun.stdio.screen import Screen
from poprun.stdio.stdin import Stdin


def routes(request: Request, settings: Settings) -> Routes:
    """Return how the output is marked, and where it is shown."""
    arguments = request.arguments.job
    return Routes(
        tag=arguments.tag_output,
        timestamp=arguments.timestamp_output,
        xml=arguments.xml,
        merged=arguments.merge_stderr,
        only_instance=settings["only-output-from-instance"],
        directory=arguments.output_filename,
        only_files=arguments.output_nocopy,
        terminal_reader=request.stdin.rank if os.isatty(0) else None,
        library=os.path.dirname(environment.__file__),
    )


def make_router(
    request: Request,
    settings: Settings,
    environ: Mapping[str, str],
    status: Callable[[float], str],
) -> OutputRouter:
    """Return the router of a job's output.

    Args:
        status: Returns the status line, for --progress.
    """
    has_status = settings["progress"] and terminal.has_status_line(environ)
    # What the user types on the terminal would appear after the status.
    has_status &= not (request.stdin.is_own and os.isatty(0))
    return OutputRouter(
        routes(request, settings),
        screens=_screens(environ),
        status=status if has_status else None,
    )


def _screens(environ: Mapping[str, str]) -> dict[str, Screen]:
    """Return what is known of the terminals that poprun writes to."""
    if terminal.is_dumb(environ):
        return {}
    _, columns = terminal.own_size()
    named = (("stdout", 1), ("stderr", 2))
    return {name: Screen(columns) for name, number in named if os.isatty(number)}


def wait_for_stdin(stdin: Stdin) -> None:
    """Wait until poprun may read its terminal, if an instance gets its stdin.

    Raises:
        OptionError: poprun is in the background, and no shell can continue it.
    """
    if stdin.is_own and not terminal.wait_until_readable(0):
        raise OptionError(
            "--stdin would read the terminal, which another job has, and no shell "
            "could continue poprun when it is free. Run poprun in the foreground, or "
            "give it another input, such as < /dev/null."
        )
