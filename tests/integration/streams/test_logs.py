"""What -v, -vv and --dry-run say, beside what the original says."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from conftest import Poprun

pytestmark = pytest.mark.mpi

LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} (\d+) POPRUN \[([ID])\] (.*)")
SHARED = ("--num-instances", "2", "--num-replicas", "2")
TABLE = """\
 ===================
|  poprun topology  |
|===================|
| hosts     |  [0]  |
|-----------|-------|
| ILDs      |   0   |
|-----------|-------|
| instances | 0 | 1 |
|-----------|-------|
| replicas  | 0 | 1 |
 -------------------
[0]: localhost
"""

# What differs from run to run.
CHANGING = (
    (re.compile(r"\(PID \d+\)"), "(PID n)"),
    (re.compile(r"Instance \d "), "Instance i "),
    (re.compile(r"runs on CPUs [\d,-]+"), "runs on CPUs c"),
    (re.compile(r"[\d.]+ s of CPU time"), "t s of CPU time"),
    (re.compile(r"Running command: .*"), "Running command: ..."),
    (re.compile(r"Using .* \(/.*\)"), "Using MPI version (path)"),
)


def lines(stderr: str) -> list[tuple[str, str]]:
    """Return level and message of each line; all must be lines of one poprun."""
    found = [LINE.fullmatch(line) for line in stderr.splitlines()]
    assert all(found), stderr
    assert len({line[1] for line in found if line}) == 1
    return [(line[2], line[3]) for line in found if line]


def without_what_changes(found: list[tuple[str, str]]) -> list[str]:
    same = []
    for level, message in found:
        for pattern, text in CHANGING:
            message = pattern.sub(text, message)
        same.append(f"{level} {message}")
    return same


def test_vv_tells_of_a_job_in_the_order_of_the_original(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun("-vv", "--mpirun", every_mpirun, *SHARED, "echo", "hi")

    # The table is what was asked for; the log is not.
    assert (ran.code, ran.stdout) == (0, TABLE + "hi\nhi\n")
    said = without_what_changes(lines(ran.stderr))
    said = [re.sub("poprun-[0-9a-f]{32}", "OWN", line) for line in said]
    options = (
        '{"ipuLinkDomainSize":"2","ipuLinkConfiguration":"default",'
        '"ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"1"}'
    )
    assert said[:9] == [
        "D Done polling, final state of OWN: PS_ACTIVE",
        "D Target options from environment: {}",
        f"D Target options from V-IPU partition: {options}",
        f"D Using target options: {options}",
        "D No hosts specified; ignoring host-subnet setting",
        "D Default network/RNIC for host communication: None",
        "D Using MPI version (path)",
        "I Running command: ...",
        "I Waiting for mpirun (PID n)",
    ]
    # Which of the two comes first is chance.
    assert sorted(said[9:-1]) == [
        *["D Instance i ended with exit code 0 after t s of CPU time"] * 2,
        *["I Instance i (PID n) runs on CPUs c"] * 2,
    ]
    assert said[-1] == "I mpirun (PID n) terminated with exit code 0"


def test_v_tells_of_the_same_without_the_details(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun("-v", "--mpirun", every_mpirun, *SHARED, "sh", "-c", "exit 0")

    assert (ran.code, ran.stdout) == (0, "")
    assert without_what_changes(lines(ran.stderr)) == [
        "I Running command: ...",
        "I Waiting for mpirun (PID n)",
        "I Instance i (PID n) runs on CPUs c",
        "I Instance i (PID n) runs on CPUs c",
        "I mpirun (PID n) terminated with exit code 0",
    ]


def test_the_pid_is_that_of_the_mpirun_that_was_started(
    poprun: Poprun, openmpi4: str
) -> None:
    # An mpirun that tells its own PID, and then does its work under that.
    wrapper = poprun.directory / "mpirun"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || echo $$ > pid\nexec {openmpi4} "$@"\n'
    )
    wrapper.chmod(0o755)

    ran = poprun("-v", "--mpirun", str(wrapper), "true")

    pid = (poprun.directory / "pid").read_text().strip()
    said = [message for _, message in lines(ran.stderr)]
    assert said[1] == f"Waiting for mpirun (PID {pid})"
    assert said[-1] == f"mpirun (PID {pid}) terminated with exit code 0"


def running_command(stderr: str) -> list[str]:
    [command] = [
        message.removeprefix("Running command: ")
        for _, message in lines(stderr)
        if message.startswith("Running command: ")
    ]
    executable, *quoted = command.split(" '")
    assert all(word.endswith("'") for word in quoted)
    return [executable, *(word[:-1] for word in quoted)]


def cut(words: list[str], at: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == at:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


@pytest.mark.parametrize("name", ["openmpi5", "openmpi4"])
def test_the_command_has_the_originals_words_in_the_originals_order(
    poprun: Poprun, name: str, request: pytest.FixtureRequest
) -> None:
    mpirun = request.getfixturevalue(name)

    ran = poprun(
        *("-v", "--mpirun", mpirun, "--executable-cache-path", "cache"),
        "--mpi-global-args=--tag-output --allow-run-as-root",
        "--mpi-local-args=-x LIMIT=7 -x EMPTY=",
        *(*SHARED, "echo", "mode=train"),
        environ={"LD_LIBRARY_PATH": "/l", "PYTHONPATH": "/p"},
    )

    words = running_command(
        "\n".join(line for line in ran.stderr.splitlines() if " POPRUN [" in line)
    )
    assert words[:5] == [
        mpirun,
        *("--bind-to", "none", "--tag-output", "--allow-run-as-root"),
    ]
    contexts = cut(words[5:], ":")
    assert len(contexts) == 2
    for rank, context in enumerate(contexts):
        job = next(w for w in context if w.startswith("POPDIST_JOB_ID=")).partition("=")
        options = (
            '{"ipuLinkDomainSize":"2","ipuLinkConfiguration":"default",'
            '"ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"1"}'
        )
        assert context[:40] == [
            *("-np", "1"),
            *("-x", "POPDIST_NUM_TOTAL_REPLICAS=2"),
            *("-x", "POPDIST_NUM_IPUS_PER_REPLICA=1"),
            *("-x", "POPDIST_NUM_LOCAL_REPLICAS=1"),
            *("-x", "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE=1"),
            *("-x", f"POPDIST_EXECUTABLE_CACHE_PATH={poprun.directory}/cache"),
            *("-x", f"POPDIST_REPLICA_INDEX_OFFSET={rank}"),
            *("-x", f"POPDIST_LOCAL_INSTANCE_INDEX={rank}"),
            *("-x", f"IPUOF_VIPU_API_PARTITION_ID=poprun-{job[2]}"),
            *("-x", "IPUOF_VIPU_API_TIMEOUT=10"),
            *("-x", f"IPUOF_VIPU_API_GCD_ID={rank}"),
            *("-x", "IPUOF_LOG_LEVEL=WARN"),
            *("-x", "PATH", "-x", "LD_LIBRARY_PATH", "-x", "PYTHONPATH"),
            *("-x", f"POPLAR_TARGET_OPTIONS={options}"),
            *("-x", "POPDIST_CONTRACT_VERSION=1"),
            *("-x", f"POPDIST_JOB_ID={job[2]}"),
            *("-x", "POPDIST_OFFLINE_MODE=0"),
            *("-x", "POPDIST_RESTART_COUNT=0"),
        ]
        # Then the shim, and the program where it gets it. A user's own values are
        # for the program alone.
        assert context[-6:] == [
            *("shim", f"{job[2]}.0", "POPDIST_CONTROL", str(rank)),
            *("echo", "mode=train"),
        ]
    assert sorted(ran.stdout.splitlines()) == [
        "[1,0]<stdout>:mode=train",
        "[1,1]<stdout>:mode=train",
    ]


def test_the_code_of_an_mpirun_that_fails_is_told(
    poprun: Poprun, every_mpirun: str
) -> None:
    wrapper = poprun.directory / "mpirun"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {every_mpirun} --version\nexit 9\n'
    )
    wrapper.chmod(0o755)

    ran = poprun("-v", "--mpirun", str(wrapper), "true")

    assert " [I] mpirun (PID " in ran.stderr
    assert ") terminated with exit code 9\n" in ran.stderr


def test_the_log_has_the_code_of_the_instance_that_failed(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun("-v", "--mpirun", every_mpirun, "sh", "-c", "exit 7")

    assert ran.code == 7
    *_, log, cause = ran.stderr.splitlines()
    assert log.endswith(") terminated with exit code 7")
    assert cause == "poprun: error: Instance 0 on localhost exited with code 7."


def wrapped(poprun: Poprun, mpirun: str) -> tuple[str, Path]:
    """Return an mpirun that writes down what it is asked."""
    calls = poprun.directory.parent / f"{poprun.directory.name}-calls"
    wrapper = poprun.directory / "mpirun"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {mpirun} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper), calls


def test_a_dry_run_starts_no_process_and_makes_no_file(
    poprun: Poprun, every_mpirun: str
) -> None:
    mpirun, calls = wrapped(poprun, every_mpirun)

    ran = poprun(
        *("--dry-run", "--mpirun", mpirun, *SHARED),
        "--mpi-global-args=--output-filename logs",
        *("sh", "-c", "echo ran > ran"),
    )

    assert (ran.code, ran.stderr) == (0, "")
    command, _, rest = ran.stdout.partition("\n")[2].partition("\n\n")
    assert shlex.split(command)[0] == mpirun
    assert rest.startswith("instance 0 on localhost:\n  runs sh -c 'echo ran > ran'\n")
    assert "\ninstance 1 on localhost:\n" in rest
    # Asked who it is, and nothing else.
    assert calls.read_text() == "--version\n"
    assert [path.name for path in poprun.directory.iterdir()] == ["mpirun"]
    ran.job.assert_nothing_is_left()


def test_a_dry_run_shows_the_command_that_the_job_is_started_with(
    poprun: Poprun, every_mpirun: str
) -> None:
    mpirun, calls = wrapped(poprun, every_mpirun)
    words = ("--mpirun", mpirun, *SHARED, "--executable-cache-path", "c", "true")
    job = re.compile(r"\b[0-9a-f]{32}\b")

    text = poprun("--dry-run", *words).stdout
    shown = text.partition("\n")[2].partition("\n\n")[0]
    ran = poprun("-v", *words)

    assert ran.code == 0
    [line] = re.findall("Running command: (.*)", ran.stderr)
    assert job.sub("ID", line) == job.sub("ID", shown)
    # mpirun gets no variables and no program: the shims get both from poprun.
    started = calls.read_text().splitlines()[-1].split()
    printed = re.sub(r" '-x' '[^']*'| '-env' '[^']*' '[^']*'", "", line)
    assert started == [item for item in shlex.split(printed)[1:] if item != "true"]


@pytest.mark.parametrize(
    "words",
    [
        ("--host", "elsewhere.example", "true"),
        ("--vipu-allocation=a", "true"),
        ("no-program",),
    ],
    ids=["host", "v-ipu", "program"],
)
def test_a_job_that_is_refused_is_not_said_to_run(
    poprun: Poprun, words: tuple[str, ...]
) -> None:
    ran = poprun("-v", "--mpirun", "local", "--print-topology=yes", *words)

    assert ran.code in (2, 125, 127)
    assert "Running command" not in ran.stderr
    assert ran.stdout == ""


def test_jobs_that_cannot_be_started_yet_are_shown(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun(
        *("--dry-run", "--mpirun", every_mpirun, "--host", "a,b"),
        *("--vipu-partition", "p64", "--vipu-server-host", "10.1.3.101"),
        *(*SHARED, "--topology-format", "json", "--print-topology", "yes", "true"),
    )

    assert (ran.code, ran.stderr) == (0, "")
    table, end = json.JSONDecoder().raw_decode(ran.stdout)
    assert table["hosts"] == ["a", "b"]
    assert "\ninstance 0 on a:\n" in ran.stdout[end:]
    assert "\ninstance 1 on b:\n" in ran.stdout[end:]
    assert ran.stdout.count("\n  IPUOF_VIPU_API_PARTITION_ID=p64\n") == 2


def test_with_vv_each_instance_says_which_algorithms_its_reductions_ran(
    poprun: Poprun,
) -> None:
    program = """
import numpy, popdist
group = popdist.replica_group()
for _ in range(3):
    group.all_reduce(numpy.ones((1, 4)), algorithm="oneshot")
group.all_reduce(numpy.ones((1, 4)), algorithm="ring")
popdist.collectives.allReduceSum(numpy.ones(4), async_op=True).wait()
"""
    words = ("--mpirun", "local", *SHARED, sys.executable, "-c", program)

    loud, quiet = poprun("-vv", *words), poprun("-v", *words)

    said = [line for line in loud.stderr.splitlines() if line.startswith("popdist:")]
    assert sorted(said) == [
        f"popdist: instance {i}: reductions by algorithm: 4 oneshot, 1 ring."
        for i in (0, 1)
    ]
    assert (loud.code, quiet.code) == (0, 0)
    assert "popdist:" not in quiet.stderr
