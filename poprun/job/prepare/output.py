"""Where the output of a job goes, and its input comes from: settings -> Routes."""

import os

from popdist import environment
from poprun.errors import OptionError
from poprun.options.settings import Settings
from poprun.plan.values import Request
from poprun.stdio import terminal
from poprun.stdio.routes import Routes
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
