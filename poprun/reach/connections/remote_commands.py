"""Runs commands on other hosts, all at once, and returns their output."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from poprun.errors import LaunchError, explain_errno
from poprun.helpers.load import timeout_factor
from poprun.reach.connections.connector import CommandEnd, errors_in

MOST_AT_ONCE = 64
# How long the pipes of a command that was killed may stay open.
KILLED_S = 1.0
# How often to look at the length of a command's output.
LOOK_S = 0.1


def run_all(
    commands: Sequence[Sequence[str]],
    environ: Mapping[str, str],
    limit_s: float | None = None,
    at_once: int = MOST_AT_ONCE,
    stdin: str = "",
    most_output: int | None = None,
) -> list[CommandEnd]:
    """Run some commands, and return how each ended.

    One that takes too long or writes too much is killed, and has no exit code.

    Args:
        limit_s: How long each may take, times timeout_factor().
        stdin: The standard input of each.
        most_output: How many bytes each may write, a little more than that at times.
            Not with `stdin`.

    Raises:
        LaunchError: One cannot be started.
    """
    if limit_s is not None:
        limit_s *= timeout_factor()
    run = partial(
        _run,
        environ=environ,
        limit_s=limit_s,
        stdin=os.fsencode(stdin) or None,
        most_output=most_output,
    )
    if len(commands) == 1:
        # A signal ends it at once.
        return [run(commands[0])]
    with ThreadPoolExecutor(max(1, min(at_once, len(commands)))) as pool:
        return list(pool.map(run, commands))


def _run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    limit_s: float | None,
    stdin: bytes | None,
    most_output: int | None,
) -> CommandEnd:
    try:
        process = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Without a terminal to ask on.
            start_new_session=True,
        )
    except OSError as error:
        reason = explain_errno(error.errno or 0)
        raise LaunchError(f"{argv[0]} cannot be run: {reason}") from None
    exit_code: int | None = None
    with process:
        try:
            if most_output is None:
                output, errors = process.communicate(stdin, limit_s)
            else:
                output, errors = _read_bounded(process, limit_s, most_output)
            exit_code = process.returncode
        except subprocess.TimeoutExpired:
            _kill_group(process)
            output, errors = _rest_of_output(process)
        except BaseException:
            _kill_group(process)
            raise
    return CommandEnd(
        exit_code=exit_code,
        output=output.decode(errors="backslashreplace"),
        errors=errors_in(errors.decode(errors="backslashreplace")),
    )


def _read_bounded(
    process: "subprocess.Popen[bytes]", limit_s: float | None, most_output: int
) -> tuple[bytes, bytes]:
    """Return the stdout and stderr of a command.

    Raises:
        TimeoutExpired: It takes too long or writes too much.
    """
    ends_by = float("inf") if limit_s is None else time.monotonic() + limit_s
    while True:
        try:
            return process.communicate(timeout=LOOK_S)
        except subprocess.TimeoutExpired as error:
            length = len(error.output or b"") + len(error.stderr or b"")
            if length > most_output or time.monotonic() >= ends_by:
                raise


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _rest_of_output(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    try:
        return process.communicate(timeout=KILLED_S)
    except subprocess.TimeoutExpired as error:
        # A descendant in another session keeps the pipes open.
        return error.output or b"", error.stderr or b""
