"""Runs the command of --host-discovery-script, which prints the hosts of a job."""

import shlex
from collections.abc import Mapping

from poprun.errors import HostUnreachableError, OptionError
from poprun.host_specs import HostSpec, parse_hostfile
from poprun.reach.connector import MOST_LINES, quotation
from poprun.reach.remote_commands import run_all

OPTION = "--host-discovery-script"
# It asks a scheduler or a cloud.
LIMIT_S = 30.0


def discover_hosts(text: str, environ: Mapping[str, str]) -> tuple[HostSpec, ...]:
    """Return the hosts that a command prints, one per line.

    Args:
        text: A program and its arguments, quoted as in a shell.

    Raises:
        OptionError: It is not a command.
        HostError: It prints something else.
        HostUnreachableError: It fails, or prints no host.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise OptionError(
            f"{OPTION} {text!r} is not a command: it has no program, or an unmatched "
            f"quotation mark. Write it like {OPTION} './hosts.sh --all'."
        )
    [ran] = run_all([words], environ, LIMIT_S)
    if ran.exit_code is None:
        problem = f"does not end within {LIMIT_S:g} s"
    elif ran.exit_code:
        problem = f"exits with code {ran.exit_code}"
    elif not ran.output.strip():
        problem = "prints no host"
    else:
        return parse_hostfile(ran.output, OPTION)
    said = quotation("It", ran.lines[:MOST_LINES])
    raise HostUnreachableError(
        f"The command {text!r} of {OPTION} {problem}.{said} It must print the hosts "
        "that can be used, one per line, such as node-1:2."
    )
