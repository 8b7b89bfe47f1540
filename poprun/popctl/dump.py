"""`popctl dump`: the Python stacks of all instances."""

import shutil
import subprocess
import sys
from pathlib import Path

import click

from poprun.helpers import processes
from poprun.popctl.job_table import View
from poprun.popctl.jobs import choose_job, job_and_instance, show_job
from poprun.popctl.output import copy_output, say
from poprun.texts.stdout import write
from poprun.wire import protocol

# It stops a process while it reads its memory, for milliseconds.
PY_SPY_S = 20


@click.command("dump", short_help="Print the Python stacks of all instances.")
@click.argument("arguments", nargs=-1, metavar="[JOB] [INSTANCE]")
@click.option(
    "--signal",
    "by_signal",
    is_flag=True,
    help="Let each Python process write its own stacks, even if py-spy is installed.",
)
def command(arguments: tuple[str, ...], by_signal: bool) -> None:
    """Print the Python stacks of all instances, or of one.

    JOB is the beginning of an id that `popctl ps` shows. It can be left out if only one
    job is running. Each Python process writes its stacks to its stderr, so they are
    also in the output of the job. If py-spy is installed and may read the processes, it
    prints the stacks of those on this host, and the job's output stays as it is.
    """
    prefix, instance = job_and_instance(arguments, needs_instance=False)
    connection = choose_job(prefix)
    job = show_job(connection)
    connection.close()
    ranks = [instance] if instance is not None else list(range(job["num_instances"]))
    if not by_signal and (py_spy := _find_py_spy()) is not None:
        by_rank = {i["index"]: i for i in job["instances"]}
        ranks = [r for r in ranks if not _spy(py_spy, by_rank.get(r))]
    if ranks:
        connection = choose_job(job["id"])
        connection.send(protocol.DUMP_STACKS, ",".join(map(str, ranks)).encode())
        copy_output(connection)


def _find_py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _spy(py_spy: str, instance: View | None) -> bool:
    """Write the stacks of an instance by py-spy; return whether it could."""
    if instance is None or not instance["is_local"] or instance["phase"] != "running":
        return False
    name = f"instance {instance['index']}"
    has_shown = False
    for pid in _pythons_of(instance["pid"]):
        stacks, failure = _stacks(py_spy, pid)
        if failure:
            say(f"py-spy cannot read the stacks of {name} (PID {pid}): {failure}")
            continue
        write(f"Python stacks of {name} (PID {pid}), by py-spy:\n{stacks}\n")
        has_shown = True
    return has_shown


def _pythons_of(program: int) -> list[int]:
    """Return the pids of an instance's Pythons, its program first.

    Each is looked at by itself: py-spy, asked for all, ends at the first process that
    is no Python (https://github.com/benfred/py-spy/issues/846).
    """
    below = sorted(p.pid for p in processes.descendants([program]))
    pythons = [
        pid
        for pid in (program, *below)
        if processes.catches(pid, protocol.STACKS_SIGNAL)
    ]
    return pythons or [program]


def _stacks(py_spy: str, pid: int) -> tuple[str, str]:
    """Return the stacks of a process, or why there are none."""
    argv = [py_spy, "dump", "--pid", str(pid)]
    try:
        ended = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=PY_SPY_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{error}."
    if ended.returncode:
        return "", ended.stderr.partition("\n")[0] or f"exit code {ended.returncode}."
    return ended.stdout, ""
