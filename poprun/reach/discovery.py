"""Finds the hosts that an elastic job may use, as its options or Slurm name them."""

import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

from poprun.errors import (
    HostError,
    HostUnreachableError,
    LaunchError,
    OptionError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
    SlurmError,
)
from poprun.helpers import processes
from poprun.host_specs import HostSpec, parse_hostfile
from poprun.options.settings import Settings
from poprun.plan import slurm
from poprun.plan.elastic import DISCOVERY
from poprun.plan.request import read_named_hosts
from poprun.plan.slurm import SlurmJob
from poprun.reach.connections.connector import MOST_LINES, quotation
from poprun.reach.connections.remote_commands import run_all
from poprun.reach.own_host.program import find_program
from poprun.reach.own_host.resource_limits import allow_connections

OPTION = f"--{DISCOVERY}"
# It asks a scheduler or a cloud.
LIMIT_S = 30.0
# Enough for 65536 hosts, the most that a job can have, with long names.
MOST_OUTPUT = 1 << 24


def are_named(settings: Settings | Mapping[str, Any]) -> bool:
    """Return whether an option names the hosts."""
    return any(settings[name] is not None for name in (DISCOVERY, "host", "hostfile"))


def name_hosts(
    settings: Settings | Mapping[str, Any], environ: Mapping[str, str]
) -> Sequence[HostSpec] | None:
    """Return the hosts that the options name; None if they name none.

    Raises:
        SlurmError: Slurm does not say which nodes the job has.
        PoprunError: They cannot be read, the command that prints them fails, or they
            are too many to connect to.
    """
    named: Sequence[HostSpec] | None
    if settings[DISCOVERY] is not None:
        named = discover_hosts(settings[DISCOVERY], environ)
    else:
        named = read_named_hosts(settings)
    if named is None and (job := slurm.read_job(environ)) is not None:
        named = ask_slurm(job, environ)
    # Before each attempt all are connected.
    allow_connections(len(named or ()))
    return named


def ask_slurm(job: SlurmJob, environ: Mapping[str, str]) -> Sequence[HostSpec]:
    """Return the nodes that a Slurm job has now.

    Without squeue, as in many containers, they are the nodes at the start.

    Raises:
        SlurmError: squeue fails, or does not list them.
    """
    path = shutil.which("squeue", path=environ.get("PATH", os.defpath))
    if path is None:
        return job.nodes
    argv = [path, "--noheader", f"--jobs={job.job_id}", "--format=%A %N"]
    # The user's variables could filter the jobs.
    environ = {n: v for n, v in environ.items() if not n.startswith("SQUEUE_")}
    try:
        output, problem = _run(argv, environ)
        if not problem:
            return slurm.present_nodes(job, output)
        problem = f"It {problem}"
    except (HostError, LaunchError) as error:
        problem = str(error)
    raise SlurmError(
        f"squeue does not say which nodes Slurm's job {job.job_id} has now. {problem}"
    )


def discover_hosts(text: str, environ: Mapping[str, str]) -> tuple[HostSpec, ...]:
    """Return the hosts that a command prints, one per line.

    Args:
        text: A program and its arguments, quoted as in a shell.

    Raises:
        OptionError: It is not a command.
        HostError: It prints something else.
        HostUnreachableError: It fails, or prints no host.
        LaunchError: It cannot be started.
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
    try:
        path = find_program(words, environ.get("PATH"), os.curdir)
        output, problem = _run([path, *words[1:]], environ)
    except (LaunchError, ProgramNotExecutableError, ProgramNotFoundError) as error:
        raise LaunchError(
            f"{OPTION} must name an executable file, such as a script that begins with "
            f"#!/bin/sh. {error}"
        ) from None
    if problem:
        raise HostUnreachableError(
            f"The command {text!r} of {OPTION} {problem} It must print the hosts "
            "that can be used, one per line, such as node-1:2."
        )
    return parse_hostfile(output, OPTION)


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
    """Run a command that prints hosts; return its stdout, and its failure or "".

    Raises:
        LaunchError: It cannot be started.
    """
    began = time.monotonic()
    [ran] = run_all([argv], environ, LIMIT_S, most_output=MOST_OUTPUT)
    if len(ran.output) + len(ran.errors) > MOST_OUTPUT:
        problem = f"prints more than {MOST_OUTPUT >> 20} MiB"
    elif ran.exit_code is None:
        # A busy machine is given longer.
        waited_s = time.monotonic() - began
        problem = f"does not end and close its output within {waited_s:.0f} s"
    elif ran.exit_code < 0:
        problem = f"was killed by {processes.signal_name(-ran.exit_code)}"
    elif ran.exit_code:
        problem = f"exits with code {ran.exit_code}"
    elif not ran.output.strip():
        problem = "prints no host"
    else:
        return ran.output, ""
    said = quotation("It", ran.lines[:MOST_LINES])
    return ran.output, f"{problem}.{said}"
