"""`popctl doctor`: what of this machine, or of several, may keep jobs from running."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import click

from poprun.errors import PoprunError
from poprun.options.table import GROUPS
from poprun.options.types import variable
from poprun.plan.hosts import parse_hosts
from poprun.popctl.machine_checks import (
    FAIL,
    PASS,
    WARN,
    Check,
    as_json,
    check_machine,
)
from poprun.python_calls import JobResult, run_command
from poprun.texts.stdout import write

# A job that hangs is a finding.
SECONDS = 60
ECHO = ("sh", "-c", 'echo "instance $RANK"')
REDUCE = """
import time, numpy, popdist
group = popdist.instance_group()
x = numpy.ones(1 << 18, numpy.float32)
times = []
for _ in range(10):
    begin = time.perf_counter()
    y = group.all_reduce(x)
    times.append(time.perf_counter() - begin)
assert (y == group.size).all(), y
group.barrier()
if group.rank == 0:
    print(f"1 MiB among {group.size} instances in {min(times) * 1e6:.0f} us")
"""
VIPU = "from poprun.vipu.commands.entry_points import vipu; vipu()"
MACHINE = (sys.executable, "-P", "-m", "poprun.popctl.machine_checks")
# Options of the caller's jobs, whose variables would change what those of the doctor
# print. The others tell how hosts and MPI are reached.
GROUPS_LEFT_OUT = ("Topology", "Output", "Limits", "Debug and general")
WITHOUT_VIPU = "Jobs started with -n or --offline-mode=yes need no IPUs."


@click.command("doctor")
@click.option(
    "--host",
    metavar="HOSTS",
    help="Also check these hosts, which poprun connects to as in a job.",
)
@click.option("--json", "in_json", is_flag=True, help="Print JSON instead of a table.")
def command(host: str | None, in_json: bool) -> int:
    """Check whether jobs can run here, and say how to fix what fails.

    It starts real jobs: two instances that print, and an all-reduce. The exit code is 1
    if a check fails.
    """
    by_host: dict[str, list[Check]] = {}
    for name, check in checks_of(host):
        by_host.setdefault(name, []).append(check)
        if not in_json:
            write(line(name if host else "", check))
    checks = [check for some in by_host.values() for check in some]
    if in_json:
        hosts = [
            {"host": name, "checks": [as_json(check) for check in some]}
            for name, some in by_host.items()
        ]
        report = {"format": "popctl-doctor", "version": 1, "hosts": hosts}
        write(json.dumps(report, indent=2) + "\n")
    return int(any(check.status == FAIL for check in checks))


def line(host: str, check: Check) -> str:
    """Return how a check is shown, with its mend below it."""
    where = f"{host}: " if host else ""
    text = f"{check.status}  {where}{check.name}: {check.text}\n"
    return text + (f"      -> {check.mend}\n" if check.mend else "")


def checks_of(hosts: str | None) -> Iterator[tuple[str, Check]]:
    """Yield the checks with the host of each, as they are made."""
    here = os.uname().nodename
    for check in check_machine(os.environ):
        yield here, check
    yield here, check_vipu()
    yield here, check_job("two instances", [], ECHO)
    yield here, check_job("all-reduce", [], (sys.executable, "-P", "-c", REDUCE))
    if hosts is not None:
        yield from checks_of_hosts(hosts)


def check_vipu() -> Check:
    """Check that partitions can be listed: on a server, or in this user's inventory."""
    words = [sys.executable, "-P", "-c", VIPU, "list", "partition"]
    try:
        ran = subprocess.run(
            words, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"vipu list partition did not end within {SECONDS} s"
        return Check(name="V-IPU", status=FAIL, text=text, mend=WITHOUT_VIPU)
    if ran.returncode:
        text = (ran.stderr.strip() or "vipu list partition failed").splitlines()[-1]
        return Check(name="V-IPU", status=FAIL, text=text, mend=WITHOUT_VIPU)
    return Check(name="V-IPU", status=PASS, text="partitions can be listed")


def run_job(words: Sequence[str]) -> JobResult:
    """Run a job, and return how it ended and what it printed."""
    options = [option.name for group in GROUPS_LEFT_OUT for option in GROUPS[group]]
    left_out = {variable(name) for name in (*options, "host", "hostfile")}
    return run_command(
        [f"--timeout={SECONDS}", "--offline-mode=yes", "--progress=no", *words],
        capture_output=True,
        environ={n: text for n, text in os.environ.items() if n not in left_out},
    )


def check_job(name: str, options: Sequence[str], program: Sequence[str]) -> Check:
    """Check that a program runs on two instances, or on those of the options."""
    try:
        result = run_job([*(options or ("-n", "2")), *program])
    except PoprunError as error:
        return Check(name=name, status=FAIL, text=str(error))
    if result.exit_code:
        cause = result.cause or f"poprun exited with {result.exit_code}"
        return Check(
            name=name,
            status=FAIL,
            text=cause,
            mend=" ".join(result.hints) or _last_line(result),
        )
    seconds = f"{result.elapsed_s:.1f} s from start to end"
    if program == ECHO:
        if sorted(result.stdout.splitlines()) != ["instance 0", "instance 1"]:
            text = f"the output of two instances is wrong: {result.stdout!r}"
            return Check(
                name=name,
                status=FAIL,
                text=text,
                mend="Run poprun -vv -n 2 echo hello.",
            )
        return Check(name=name, status=PASS, text=f"both instances printed, {seconds}")
    return Check(name=name, status=PASS, text=f"{result.stdout.strip()}, {seconds}")


def _last_line(result: JobResult) -> str:
    lines = result.stderr.strip().splitlines()
    return lines[-1].removeprefix("poprun: ") if lines else ""


def checks_of_hosts(hosts: str) -> Iterator[tuple[str, Check]]:
    """Yield the checks of other hosts, which poprun makes there as a job."""
    try:
        result = run_job(["--host", hosts, *_one_a_host(hosts), *MACHINE])
    except PoprunError as error:
        yield hosts, Check(name="hosts", status=FAIL, text=str(error))
        return
    if result.exit_code:
        cause = result.cause or _last_line(result)
        yield (
            hosts,
            Check(name="hosts", status=FAIL, text=cause, mend=" ".join(result.hints)),
        )
        return
    yield from _read_reports(hosts, result.stdout)
    program = (sys.executable, "-P", "-c", REDUCE)
    options = ["--host", hosts, *_one_a_host(hosts)]
    yield hosts, check_job("all-reduce between hosts", options, program)


def _read_reports(hosts: str, out: str) -> Iterator[tuple[str, Check]]:
    """Yield the checks that the hosts have printed, and that some have printed none."""
    num_reports = 0
    for text in out.splitlines():
        try:
            report = json.loads(text)
            checks = [(report["host"], Check(**each)) for each in report["checks"]]
        except (ValueError, KeyError, TypeError):
            # What Python's start-up files print, or checks of another version.
            what = (
                f"a host printed a line that is not a result of a check: {text[:200]!r}"
            )
            mend = (
                "Make sure that Python's start-up files there print nothing, and that "
                "all hosts have the same poprun."
            )
            yield hosts, Check(name="hosts", status=WARN, text=what, mend=mend)
            continue
        num_reports += 1
        yield from checks
    expected = len(parse_hosts(hosts))
    if num_reports < expected:
        text = f"{num_reports} of {expected} hosts reported their checks"
        yield hosts, Check(name="hosts", status=FAIL, text=text)


def _one_a_host(hosts: str) -> tuple[str, ...]:
    count = str(len(parse_hosts(hosts)))
    return ("--num-instances", count, "--num-replicas", count)
