"""Copies folders to the same paths on other hosts with rsync."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from poprun.errors import HostUnreachableError, OptionError
from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.log import Log
from poprun.plan.hosts import HostSpec
from poprun.reach.remote_commands import Ran, run_all
from poprun.reach.srun import Srun
from poprun.reach.srun_port import failures_in
from poprun.reach.ssh import CONNECT_S, Ssh
from poprun.reach.ssh_failures import SshFailure
from poprun.words import printable

LIMIT_S = CONNECT_S + 1.5
# How long rsync waits for a host that accepts no data before it gives up.
STALLED_S = 60
MOST_COPIES_AT_ONCE = 16
# rsync's exit code if files were removed here while it ran.
VANISHED = 24
MARKER = ".poprun-"

# Sends a message to the guard.
Tell = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A folder to copy, and how."""

    directory: str
    # What it is, and the option that asks for it, for messages.
    noun: str
    option: str
    # For rsync.
    options: Sequence[str]


def copy_to_hosts(
    copies: Sequence[Copy],
    hosts: Sequence[HostSpec],
    tool: Ssh | Srun,
    environ: Mapping[str, str],
    tell: Tell,
    log: Log,
) -> None:
    """Copy folders to hosts, but for hosts on which they are the same folders.

    Raises:
        OptionError: There is no rsync.
        HostUnreachableError: A host cannot be reached, or a copy fails; names all.
    """
    environ = tool.environment(environ)
    rsync = shutil.which("rsync", path=environ.get("PATH", os.defpath))
    for copy in copies:
        if rsync is None:
            raise OptionError(
                f"{copy.option} needs rsync, here and on the other hosts. "
                "Install it with: apt install rsync"
            )
        with marker_in(copy.directory, tell) as marker:
            others = _without_marker(hosts, tool, environ, copy, marker)
        if not others:
            continue
        names = ", ".join(host.name for host in others)
        log.info(f"Copying the {copy.noun} {copy.directory} to {names}")
        _copy(copy, others, rsync, tool, environ)


@contextmanager
def marker_in(directory: str, tell: Tell) -> Iterator[str]:
    """Create a temporary file by which hosts detect that they share a directory.

    There is none in a directory that cannot be written. It is then copied, which
    changes nothing if it is shared.
    """
    path = os.path.join(directory, f"{MARKER}{os.urandom(16).hex()}")
    actions, action = EndActions(), RemovePath(os.fsencode(path))
    tell(actions.register(action))
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)
        tell(actions.withdraw(action))


def _without_marker(
    hosts: Sequence[HostSpec],
    tool: Ssh | Srun,
    environ: Mapping[str, str],
    copy: Copy,
    marker: str,
) -> list[HostSpec]:
    """Return the hosts that need a copy, where the directory exists from now on.

    Raises:
        HostUnreachableError: A host cannot be reached, or cannot take a copy.
    """
    # A login shell may print something as well, and a path may have any characters.
    key = os.path.basename(marker)
    same, ready, no_rsync = (f"{key} {word}" for word in ("same", "ready", "lacks"))
    script = (
        f"if test -e {shlex.quote(marker)}; then echo {shlex.quote(same)}; else "
        f"mkdir -p {shlex.quote(copy.directory)} && "
        f"if command -v rsync >/dev/null; then echo {shlex.quote(ready)}; "
        f"else echo {shlex.quote(no_rsync)}; fi; fi"
    )
    command = f"exec sh -c {shlex.quote(script)}"
    commands = [tool.argv(host, command) for host in hosts]
    others: list[HostSpec] = []
    failures: list[str] = []
    for host, ran in zip(hosts, run_all(commands, environ, LIMIT_S), strict=True):
        lines = ran.output.splitlines()
        if ready in lines:
            others.append(host)
        elif no_rsync in lines:
            failures.append(
                f"The host {host.name} has no rsync, which {copy.option} needs. "
                "Install it there with: apt install rsync"
            )
        elif same not in lines:
            failures.append(_explain_unready(host, ran, tool, copy))
    if failures:
        raise HostUnreachableError("\n".join(failures))
    return others


def _explain_unready(host: HostSpec, ran: Ran, tool: Ssh | Srun, copy: Copy) -> str:
    if "mkdir" in ran.errors:
        return _sentence(host, copy, ran, f"See: {tool.shown(host)}")
    if isinstance(tool, Srun):
        return tool.explain(host, failures_in(ran.errors), sys.executable)
    failure = SshFailure(exit_code=ran.exit_code, text=ran.errors)
    return failure.explain(host, tool, "")


def _copy(
    copy: Copy,
    hosts: Sequence[HostSpec],
    rsync: str,
    tool: Ssh | Srun,
    environ: Mapping[str, str],
) -> None:
    shell = shlex.join(tool.remote_shell)
    commands = [
        [
            rsync,
            *copy.options,
            "--protect-args",
            f"--timeout={STALLED_S}",
            f"--rsh={shell}",
            "--",
            f"{copy.directory}/",
            f"{_rsync_target(host)}:{copy.directory}/",
        ]
        for host in hosts
    ]
    results = run_all(commands, environ, at_once=MOST_COPIES_AT_ONCE)
    failures = [
        _sentence(host, copy, ran, _advice(host, copy, ran, tool))
        for host, ran in zip(hosts, results, strict=True)
        if ran.exit_code not in (0, VANISHED)
    ]
    if failures:
        raise HostUnreachableError("\n".join(failures))


def _advice(host: HostSpec, copy: Copy, ran: Ran, tool: Ssh | Srun) -> str:
    if re.search(r"\[sender\] .*Permission denied", ran.errors):
        return "The file is on this host: make it readable, or remove it."
    command = "df -h"
    if "Permission denied" in ran.errors:
        command = f"ls -ld {shlex.quote(copy.directory)}"
    return f"See: {tool.shown(host, command)}"


def _rsync_target(host: HostSpec) -> str:
    """Return a host as rsync reads it before a colon."""
    user = "" if host.user is None else f"{host.user}@"
    return f"{user}[{host.name}]" if ":" in host.name else f"{user}{host.name}"


def _sentence(host: HostSpec, copy: Copy, ran: Ran, advice: str) -> str:
    errors = failures_in(ran.errors)
    lines = [line.rstrip(".") for line in errors.splitlines() if line.strip()]
    words = f" It says: '{printable('; '.join(lines[:2]))}'." if lines else ""
    return (
        f"The {copy.noun} {copy.directory} cannot be copied to the host {host.name}."
        f"{words} {advice}"
    )
