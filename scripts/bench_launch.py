"""The costs of a launch next to bare mpirun: make bench-launch.

With --hosts N what it costs on N hosts of a bed, and how long it takes until 64 hosts
have answered, as root: sudo .venv/bin/python scripts/bench_launch.py --hosts 8

All pairs are measured in turn within one run, because the machine's speed changes by
the minute: read the differences and ratios, not the times. The CPU time of a job
counts all its processes: this program is a subreaper and waits for every one.
"""

import argparse
import os
import re
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from poprun.helpers import own_process, processes

if TYPE_CHECKING:
    from beds.bed import Bed

ROOT_DIRECTORY = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
POPRUN, MPIRUN = str(BIN / "poprun"), str(BIN / "mpirun")
PASS = [sys.executable, "-c", "pass"]
DRY_RUN = ["--dry-run", "--offline-mode=1", "-n", "2", "true"]
ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []
# A launch takes a second at the most; one that takes so long hangs.
LONGEST_S = 15
# With the first of these each launch would compile every changed module.
NOT_MEASURED = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
ENVIRON = {k: v for k, v in os.environ.items() if k not in NOT_MEASURED}


def run(argv: Sequence[str], stdout: int = subprocess.DEVNULL) -> tuple[float, float]:
    """Run a command; return its wall and CPU time in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdout=stdout, stderr=stdout, env=ENVIRON)
    # Popen.wait with a timeout looks only now and then; a pidfd is ready at once.
    handle = os.pidfd_open(process.pid)
    ended, _, _ = select.select([handle], [], [], LONGEST_S)
    os.close(handle)
    if not ended:
        process.kill()
    code = process.wait()
    if not ended:
        raise subprocess.TimeoutExpired(argv, LONGEST_S)
    if code:
        raise SystemExit(f"{argv} ended with exit code {code}")
    wall = time.perf_counter() - began
    while processes.has_children():
        processes.reap()
        time.sleep(0.0005)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, cpu * 1000


def in_turn(
    poprun_argv: Sequence[str], peer_argv: Sequence[str], rounds: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the times of a poprun and of a peer that are run by turns.

    Bare mpirun hangs now and then on many short ranks; such a round does not count.
    """
    ours, theirs = [], []
    for round_ in range(rounds + 1):
        own = run(poprun_argv)
        try:
            bare = run(peer_argv)
        except subprocess.TimeoutExpired:
            print(f"      ({peer_argv[0]} hung for {LONGEST_S} s and was killed)")
            continue
        if round_:  # the first warms the caches
            ours.append(own)
            theirs.append(bare)
    return ours, theirs


def median(runs: Sequence[tuple[float, float]], which: int) -> float:
    return statistics.median(r[which] for r in runs)


def poprun(instances: int, *argv: str) -> list[str]:
    n = str(instances)
    return [
        *(POPRUN, "--num-instances", n, "--num-replicas", n, "--offline-mode=1"),
        *argv,
    ]


def mpirun(instances: int, *argv: str) -> list[str]:
    return [MPIRUN, *ROOT, "--oversubscribe", "-n", str(instances), *argv]


def launches(rounds: int) -> None:
    empty = median([run(PASS) for _ in range(rounds)], 0)
    print("Starting `true`, medians in ms (wall: poprun - mpirun; CPU of all):")
    print(f"(more: next to `python -c pass`, {empty:.0f} ms, too)")
    print("    N  poprun  mpirun    more        | CPU poprun  mpirun")
    cpus = {}
    for n in (1, 2, 4, 16, 64):
        ours, theirs = in_turn(poprun(n, "true"), mpirun(n, "true"), rounds)
        a, b = median(ours, 0), median(theirs, 0)
        cpus[n] = median(ours, 1)
        print(
            f"{n:5} {a:7.0f} {b:7.0f} {a - b:7.0f} {(a - b) / empty:5.1f}x |"
            f" {cpus[n]:10.0f} {median(theirs, 1):7.0f}"
        )
    for more, fewer in ((4, 2), (16, 4), (64, 16)):
        each = (cpus[more] - cpus[fewer]) / (more - fewer)
        print(f"CPU of each further instance from {fewer} to {more}: {each:.1f} ms")


def starts(rounds: int) -> None:
    print("\nCalls without a job, medians in ms:")
    for argv in (["--version"], ["--help"], DRY_RUN):
        ours, theirs = in_turn([POPRUN, *argv], PASS, rounds)
        print(
            f"  poprun {argv[0]:9} {median(ours, 0):4.0f}"
            f"   python -c pass {median(theirs, 0):4.0f}"
        )


def instructions() -> None:
    """Count what a process executes: other load on the machine does not change it."""
    print(
        "Millions of instructions of the first process, and next to `python -c pass`:"
    )
    empty = count_instructions(PASS)
    print(f"  python -c pass   {empty:4.0f}")
    for argv in (["--version"], ["--help"], DRY_RUN, [*DRY_RUN[1:]]):
        number = count_instructions([sys.executable, POPRUN, *argv])
        title = argv[0] if argv[0] in ("--version", "--help", "--dry-run") else "true"
        print(f"  poprun {title:9} {number:4.0f} {number / empty:5.1f}")


def count_instructions(argv: Sequence[str]) -> float:
    run(argv)  # compiles what has changed
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    environ = {**ENVIRON, "PYTHONHASHSEED": "0"}
    valgrind_run = subprocess.run([*valgrind, *argv], capture_output=True, env=environ)
    number = re.search(rb"Collected : (\d+)", valgrind_run.stderr)
    if number is None:
        raise SystemExit(valgrind_run.stderr.decode())
    return int(number[1]) / 1e6


def output(rounds: int) -> None:
    print("\nOutput of two instances:")
    count = 1_000_000
    tag = "--mpi-global-args=--tag-output"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "out")
        for title, argv in (("tagged", [tag]), ("untagged", [])):
            command = [*poprun(2, *argv), "seq", str(count)]
            seconds = [to_file(command, path) for _ in range(rounds)]
            lines = path.read_bytes().count(b"\n")
            print(
                f"  seq {count}, {title}: {2 * count / statistics.median(seconds):,.0f}"
                f" lines/s, {2 * count - lines} lost"
            )
        program = Path(directory, "prints.py")
        program.write_text("for i in range(200000):\n    print('line', i)\n")
        argv = [sys.executable, str(program)]
        pairs = [
            (to_file(poprun(2, *argv), path), to_file(mpirun(2, *argv), path))
            for _ in range(rounds)
        ]
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"  Python's print: {ratio:.2f} times bare mpirun's time")


def to_file(argv: Sequence[str], path: Path) -> float:
    with path.open("wb") as file:
        return run(argv, file.fileno())[0] / 1000


def hosts(number: int, rounds: int) -> None:
    """Compare launches on several hosts by poprun, by mpirun and by one ssh."""
    from beds.bed import Bed
    from beds.mpiruns import OPTIONS

    with Bed(hosts=number) as bed:
        names = ",".join(host.name for host in bed.hosts)
        commands = {
            "poprun": poprun(number, "--host", names, "true"),
            "mpirun": [*mpirun(number), *OPTIONS["openmpi5"], "--host", names, "true"],
            "ssh": ["ssh", bed.hosts[-1].name, "true"],
        }
        times = in_bed(bed, commands, rounds)
    more = times["poprun"] - times["mpirun"]
    print(f"Starting `true` on {number} hosts, medians in ms, and one `ssh HOST true`:")
    print(*(f"  {name} {ms:.0f}" for name, ms in times.items()))
    print(f"  poprun - mpirun - ssh: {more - times['ssh']:.0f}")


def answers(number: int, rounds: int) -> None:
    """Measure how long it takes until so many hosts have answered all questions.

    They are names of one machine. Its sshd gives each connection a separate network, so
    poprun takes them for different hosts. poprun refuses a directory for the output at
    last, when all hosts have answered. The same number of ssh runs beside it.
    """
    from beds.bed import Bed

    names = [f"n{i}" for i in range(number)]
    sshd = [
        f"MaxStartups {2 * number}",
        'ForceCommand exec unshare --net sh -c "$SSH_ORIGINAL_COMMAND"',
    ]
    print(f"Until {number} hosts have answered, medians in ms, and as many `ssh true`:")
    with Bed(hosts=2, aliases=names, sshd=sshd) as bed:
        for title, options in (
            ("as ssh is configured", []),
            ("with curve25519-sha256", ["-oKexAlgorithms=curve25519-sha256"]),
        ):
            ssh = " ".join(["ssh", *options])
            script = f"for h in {' '.join(names)}; do {ssh} $h true & done; wait"
            unwritable = "--mpi-global-args=--output-filename /proc/nowhere"
            job = ["--ssh", ssh, "--host", ",".join(names), unwritable, "true"]
            commands = {"poprun": poprun(number, *job), "ssh": ["sh", "-c", script]}
            times = in_bed(bed, commands, rounds)
            print(f"  {title}:", *(f"{name} {ms:.0f}" for name, ms in times.items()))


def in_bed(
    bed: "Bed", commands: Mapping[str, Sequence[str]], rounds: int
) -> dict[str, float]:
    """Return the median time of each command on a bed's first host, run by turns."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for round_ in range(rounds + 1):
        for name, argv in commands.items():
            began = time.perf_counter()
            process = bed.front.start(*argv, stderr=subprocess.PIPE)
            try:
                _, text = process.communicate(timeout=4 * LONGEST_S)
            except subprocess.TimeoutExpired:
                print(f"      ({argv[0]} hung for {4 * LONGEST_S} s and was killed)")
                bed.clean()
                process.communicate()
                continue
            if process.returncode and b"/proc/nowhere" not in text:
                raise SystemExit(text.decode())
            if round_:  # the first warms the caches
                times[name].append((time.perf_counter() - began) * 1000)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--hosts", type=int, help="of a bed, to launch on instead")
    parser.add_argument(
        "--instructions", action="store_true", help="count those by valgrind instead"
    )
    options = parser.parse_args()
    rounds = options.rounds
    if options.instructions:
        instructions()
        return
    if options.hosts:
        sys.path[:0] = [str(ROOT_DIRECTORY), str(ROOT_DIRECTORY / "tests")]
        hosts(options.hosts, rounds)
        answers(64, rounds)
        return
    own_process.become_subreaper()
    launches(rounds)
    starts(rounds)
    output(3)


if __name__ == "__main__":
    main()
