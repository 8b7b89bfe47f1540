"""`popctl doctor`: check whether jobs can run on this machine, and on other hosts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from poprun.errors import PoprunError
from poprun.host_specs import parse_hosts
from poprun.options.table import GROUPS
from poprun.options.types import variable
from poprun.popctl.machine_checks import (
    FAIL,
    Check,
    check_machine,
    failed,
    passed,
    warned,
)
from poprun.popctl.output import write_json
from poprun.python_calls import JobResult, run_command
from poprun.texts.stdout import write

# A job that hangs is a finding.
JOB_LIMIT_S = 60
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
ALL_REDUCE = (sys.executable, "-P", "-c", REDUCE)
VIPU = "from poprun.vipu.commands.entry_points import vipu; vipu()"
MACHINE = (sys.executable, "-P", "-m", "poprun.popctl.machine_checks")
# Variables of these options would change what the doctor's jobs print. The doctor keeps
# the other variables: they tell how to reach hosts and which MPI to use.
GROUPS_LEFT_OUT = ("Topology", "Output", "Limits", "Debug and general")
WITHOUT_VIPU = "Jobs started with -n or --offline-mode=yes need no IPUs."


@click.command("doctor", short_help="Check whether jobs can run here.")
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
            write(text_of(name if host else "", check))
    if in_json:
        hosts = [
            {"host": name, "checks": [asdict(check) for check in checks]}
            for name, checks in by_host.items()
        ]
        write_json({"format": "popctl-doctor", "version": 1, "hosts": hosts})
    return int(any(c.status == FAIL for checks in by_host.values() for c in checks))


def text_of(host: str, check: Check) -> str:
    """Return a line with the check, and one with its mend."""
    where = f"{host}: " if host else ""
    text = f"{check.status}  {where}{check.name}: {check.text}\n"
    return text + (f"      -> {check.mend}\n" if check.mend else "")


def checks_of(hosts: str | None) -> Iterator[tuple[str, Check]]:
    """Make the checks; yield the name of the host with each."""
    here = os.uname().nodename
    for check in check_machine(os.environ):
        yield here, check
    yield here, check_vipu()
    yield here, check_job("two instances", ["-n", "2"], ECHO)
    yield here, check_job("all-reduce", ["-n", "2"], ALL_REDUCE)
    if hosts is not None:
        yield from checks_of_hosts(hosts)


def check_vipu() -> Check:
    """Check that partitions can be listed: on a server, or in this user's inventory."""
    argv = [sys.executable, "-P", "-c", VIPU, "list", "partition"]
    try:
        ran = subprocess.run(
            argv, capture_output=True, text=True, timeout=JOB_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"vipu list partition did not end within {JOB_LIMIT_S} s"
        return failed("V-IPU", text, WITHOUT_VIPU)
    if ran.returncode:
        text = (ran.stderr.strip() or "vipu list partition failed").splitlines()[-1]
        return failed("V-IPU", text, WITHOUT_VIPU)
    return passed("V-IPU", "partitions can be listed")


def run_job(arguments: Sequence[str]) -> JobResult:
    """Run a job, and return its result with its output."""
    options = [option.name for group in GROUPS_LEFT_OUT for option in GROUPS[group]]
    left_out = {variable(name) for name in (*options, "host", "hostfile")}
    return run_command(
        [f"--timeout={JOB_LIMIT_S}", "--offline-mode=yes", "--progress=no", *arguments],
        capture_output=True,
        environ={n: text for n, text in os.environ.items() if n not in left_out},
    )


def check_job(name: str, options: Sequence[str], program: Sequence[str]) -> Check:
    """Check that a program runs on several instances."""
    try:
        result = run_job([*options, *program])
    except PoprunError as error:
        return failed(name, str(error))
    if result.exit_code:
        cause = result.cause or f"poprun exited with {result.exit_code}"
        return failed(name, cause, " ".join(result.hints) or _last_line(result))
    text = result.stdout.strip()
    if program == ECHO:
        if sorted(result.stdout.splitlines()) != ["instance 0", "instance 1"]:
            text = f"the output of two instances is wrong: {result.stdout!r}"
            return failed(name, text, "Run poprun -vv -n 2 echo hello.")
        text = "both instances printed"
    return passed(name, f"{text}, {result.elapsed_s:.1f} s from start to end")


def _last_line(result: JobResult) -> str:
    lines = result.stderr.strip().splitlines()
    return lines[-1].removeprefix("poprun: ") if lines else ""


def checks_of_hosts(hosts: str) -> Iterator[tuple[str, Check]]:
    """Yield the checks of other hosts, which a job makes there."""
    count = str(len(parse_hosts(hosts)))
    one_per_host = ["--num-instances", count, "--num-replicas", count]
    options = ["--host", hosts, *one_per_host]
    try:
        result = run_job([*options, *MACHINE])
    except PoprunError as error:
        yield hosts, failed("hosts", str(error))
        return
    if result.exit_code:
        cause = result.cause or _last_line(result)
        yield hosts, failed("hosts", cause, " ".join(result.hints))
        return
    yield from read_reports(hosts, result.stdout)
    yield hosts, check_job("all-reduce between hosts", options, ALL_REDUCE)


def read_reports(hosts: str, out: str) -> Iterator[tuple[str, Check]]:
    """Yield the checks that the hosts have printed, and a check of their number."""
    num_reports = 0
    for line in out.splitlines():
        try:
            report = json.loads(line)
            checks = [(report["host"], Check(**each)) for each in report["checks"]]
        except (ValueError, KeyError, TypeError):
            # Start-up files of Python may print, and poprun may have another version.
            text = (
                f"a host printed a line that is not a result of a check: {line[:200]!r}"
            )
            mend = (
                "Make sure that Python's start-up files there print nothing, and that "
                "all hosts have the same poprun."
            )
            yield hosts, warned("hosts", text, mend)
            continue
        num_reports += 1
        yield from checks
    expected = len(parse_hosts(hosts))
    if num_reports < expected:
        text = f"{num_reports} of {expected} hosts reported their checks"
        yield hosts, failed("hosts", text)
