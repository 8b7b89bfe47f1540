"""Copies folders to the same paths on other hosts with rsync.

These are the folder of --sync, and the virtual environments of
--synchronise-python-venv.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from poprun.errors import OptionError
from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.reach.connections.connector import (
    MOST_LINES,
    CommandEnd,
    Connector,
    quotation,
    take_failures,
)
from poprun.reach.connections.remote_commands import run_all
from poprun.reach.connections.ssh import COMMAND_LIMIT_S

# How long rsync waits for a host that accepts no data before it gives up.
STALLED_S = 60
MOST_COPIES_AT_ONCE = 16
# rsync's exit code if files were removed here while it ran.
VANISHED = 24
MARKER = ".poprun-"
# The answers of a host about a directory: it shares the directory, can get a copy, or
# lacks rsync.
SHARED, READY, NO_RSYNC = _ANSWERS = ("shared", "ready", "no-rsync")
# The file that makes a directory a virtual environment.
CONFIGURATION = "pyvenv.cfg"
# --sync leaves out histories, caches and files that belong to one machine.
EXCLUDED = (
    *(".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".nox", ".tox", ".venv"),
)

# Sends a message to the guard.
Tell = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A folder to copy, and how."""

    directory: str
    # The noun for the folder, and the option for the copy, in messages.
    noun: str
    option: str
    # For rsync.
    options: Sequence[str]


def environment_copies(environ: Mapping[str, str]) -> list[Copy]:
    """Return the copies of the virtual environments that are active.

    Raises:
        OptionError: There is none.
    """
    noun, option = "virtual environment", "--synchronise-python-venv"
    options = ("--archive", "--delete")
    return [
        Copy(directory=directory, noun=noun, option=option, options=options)
        for directory in active_environments(environ)
    ]


def active_environments(
    environ: Mapping[str, str], prefix: str = sys.prefix, base: str = sys.base_prefix
) -> list[str]:
    """Return the virtual environments that are active: the shell's, and poprun's own.

    Raises:
        OptionError: There is none.
    """
    candidates = [environ.get("VIRTUAL_ENV", ""), prefix if prefix != base else ""]
    environments = [
        os.path.normpath(path)
        for path in candidates
        if os.path.isabs(path) and os.path.exists(os.path.join(path, CONFIGURATION))
    ]
    if not environments:
        raise OptionError(
            "--synchronise-python-venv copies the active virtual environment, but none "
            "is active. Activate one with '. DIRECTORY/bin/activate' and install "
            "poprun in it, or leave the option out."
        )
    return list(dict.fromkeys(environments))


def folder_copy(directory: str) -> Copy:
    """Return the copy of the folder of --sync: nothing is deleted on the other hosts.

    Files named .rsync-filter exclude more, by rsync's own rules. Sockets and devices
    are left out.
    """
    with os.scandir(directory) as entries:
        environments = [
            # rsync reads these characters in a pattern as a shell does.
            "/" + re.sub(r"([*?[\\])", r"\\\1", entry.name)
            for entry in entries
            if os.path.exists(os.path.join(entry.path, CONFIGURATION))
        ]
    excluded = [*EXCLUDED, f"{MARKER}*", *environments]
    options = ["--archive", "--no-D", "-F", *(f"--exclude={e}" for e in excluded)]
    return Copy(directory=directory, noun="folder", option="--sync", options=options)


def copy_to_hosts(
    copy: Copy,
    hosts: Sequence[HostSpec],
    connector: Connector,
    environ: Mapping[str, str],
    tell: Tell,
    log: Log,
    failures: dict[HostSpec, str] | None = None,
) -> None:
    """Copy a folder to hosts, but for hosts on which it is the same folder.

    Args:
        failures: Gets a sentence for each host that has no copy. By default such a
            host is an error.

    Raises:
        OptionError: There is no rsync.
        HostUnreachableError: A host cannot be reached, or a copy fails; names all.
    """
    environ = connector.environment(environ)
    rsync = shutil.which("rsync", path=environ.get("PATH", os.defpath))
    if rsync is None:
        raise OptionError(
            f"{copy.option} needs rsync, here and on the other hosts. "
            "Install it with: apt install rsync"
        )
    with marker_in(copy.directory, tell) as marker:
        others, failed = _without_marker(hosts, connector, environ, copy, marker)
    take_failures(failed, failures)
    if not others:
        return
    names = ", ".join(host.name for host in others)
    log.info(f"Copying the {copy.noun} {copy.directory} to {names}")
    commands = _rsync_commands(rsync, copy, others, connector)
    results = run_all(commands, environ, at_once=MOST_COPIES_AT_ONCE)
    failed = {
        host: _sentence(host, copy, ran, _advice(host, copy, ran, connector))
        for host, ran in zip(others, results, strict=True)
        if ran.exit_code not in (0, VANISHED)
    }
    take_failures(failed, failures)


def _rsync_commands(
    rsync: str, copy: Copy, hosts: Sequence[HostSpec], connector: Connector
) -> list[list[str]]:
    """Return the command that copies a folder to each host."""
    command = [
        *(rsync, *copy.options, "--protect-args", f"--timeout={STALLED_S}"),
        *(f"--rsh={shlex.join(connector.remote_shell)}", "--", f"{copy.directory}/"),
    ]
    return [
        [*command, f"{replace(host, slots=None)}:{copy.directory}/"] for host in hosts
    ]


@contextmanager
def marker_in(directory: str, tell: Tell) -> Iterator[str]:
    """Create a temporary file, which hosts see if they share the directory.

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
    connector: Connector,
    environ: Mapping[str, str],
    copy: Copy,
    marker: str,
) -> tuple[list[HostSpec], dict[HostSpec, str]]:
    """Return the hosts that need a copy, and create the directory there.

    For each host that cannot be reached, or cannot take a copy, there is a sentence.
    """
    script = _marker_script(copy.directory, marker)
    commands = [connector.argv(host, ["sh"]) for host in hosts]
    results = run_all(commands, environ, COMMAND_LIMIT_S, stdin=script)
    others: list[HostSpec] = []
    failures: dict[HostSpec, str] = {}
    for host, ran in zip(hosts, results, strict=True):
        lines = ran.output.splitlines()
        answers = [word for word in _ANSWERS if _answer_line(marker, word) in lines]
        if READY in answers:
            others.append(host)
        elif NO_RSYNC in answers:
            failures[host] = (
                f"The host {host.name} has no rsync, which {copy.option} needs. "
                "Install it there with: apt install rsync"
            )
        elif SHARED in answers:
            continue
        elif "mkdir" in ran.errors:
            failures[host] = _sentence(host, copy, ran, f"See: {connector.shown(host)}")
        else:
            failures[host] = connector.explain(host, ran)
    return others, failures


def _marker_script(directory: str, marker: str) -> str:
    """Return a script that prints one of the answers about a directory on its host.

    It creates a directory that the host does not share.
    """
    # A path may have any characters.
    path, folder = shlex.quote(marker), shlex.quote(directory)
    shared, ready, no_rsync = (_answer_line(marker, word) for word in _ANSWERS)
    return (
        f"if test -e {path}; then echo {shared}; else mkdir -p {folder} && "
        f"if command -v rsync >/dev/null; then echo {ready}; "
        f"else echo {no_rsync}; fi; fi\n"
    )


def _answer_line(marker: str, word: str) -> str:
    # A login shell may print something as well, but no line with this name.
    return f"{os.path.basename(marker)}:{word}"


def _advice(host: HostSpec, copy: Copy, ran: CommandEnd, connector: Connector) -> str:
    if re.search(r"\[sender\] .*Permission denied", ran.errors):
        return "The file is on this host: make it readable, or remove it."
    command = "df -h"
    if "Permission denied" in ran.errors:
        command = f"ls -ld {shlex.quote(copy.directory)}"
    return f"See: {connector.shown(host, command)}"


def _sentence(host: HostSpec, copy: Copy, ran: CommandEnd, advice: str) -> str:
    words = quotation("It", ran.lines[:MOST_LINES])
    return (
        f"The {copy.noun} {copy.directory} cannot be copied to the host {host.name}."
        f"{words} {advice}"
    )
