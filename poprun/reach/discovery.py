"""Finds the hosts that an elastic job may use, as its options or Slurm name them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from poprun.errors import HostUnreachableError, OptionError
from poprun.host_specs import HostSpec, parse_hostfile
from poprun.options.settings import Settings
from poprun.plan import slurm
from poprun.plan.elastic import DISCOVERY
from poprun.plan.request import read_named_hosts
from poprun.reach.connector import MOST_LINES, quotation
from poprun.reach.remote_commands import run_all

OPTION = f"--{DISCOVERY}"
# It asks a scheduler or a cloud.
LIMIT_S = 30.0


def name_hosts(
    settings: Settings | Mapping[str, Any], environ: Mapping[str, str]
) -> Sequence[HostSpec] | None:
    """Return the hosts that the options name; None if they name none.

    Raises:
        PoprunError: They cannot be read, or the command that prints them fails.
    """
    if settings[DISCOVERY] is not None:
        return discover_hosts(settings[DISCOVERY], environ)
    named = read_named_hosts(settings)
    if named is None and (job := slurm.read_job(environ)) is not None:
        named = job.nodes
    return named


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
