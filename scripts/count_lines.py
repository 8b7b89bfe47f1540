"""Count what a call costs as a group grows: the table in docs/engine.md.

Members are threads of one program, and no count but those of waits depends on the
machine's cores or its load. Lines, of counters and announcements, and bytes, of arrays,
are those that members read of others, added up over all members. "Far" ones are of a
member with another last-level cache: --cache consecutive members share one. Waits are
polls, yields and sleeps, and switches are yields and sleeps in which another thread
ran. Instructions are a member's, counted by callgrind, without those of waits.
"""

import argparse
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from popdist.engine.tuning import Tuning

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "popdist" / "engine" / "core"
# The calls that count_lines.c makes before those that it counts.
WARM_UP = 40
HEADINGS = (
    "members",
    "call",
    "lines",
    "far lines",
    "lines of the board",
    "bytes",
    "far bytes",
    "waits",
    "switches",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what a call costs.")
    add = parser.add_argument
    add("--members", default="8,16,17,32,64,128")
    add("--cache", type=int, default=8, help="members that share a cache")
    add("--cores", type=int, default=300, help="cores for which sizes are chosen")
    add("--calls", type=int, default=20)
    add("--instructions", action="store_true", help="count them, by callgrind")
    options = parser.parse_args()
    headings = [*HEADINGS, *["instructions"] * options.instructions]
    print(f"| {' | '.join(headings)} |", "|" + " --- |" * len(headings), sep="\n")
    with TemporaryDirectory() as folder:
        counting = build(Path(folder) / "counting", "-DLINES", "-fsanitize=thread")
        plain = build(Path(folder) / "plain") if options.instructions else None
        for members in map(int, options.members.split(",")):
            lines = run([str(counting), *arguments(options, members, options.calls)])
            for task, line in enumerate(lines.splitlines()):
                cells = [str(members), *line.split("\t")]
                if plain:
                    cells.append(instructions(options, members, plain, task))
                print(f"| {' | '.join(cells)} |", flush=True)


def build(program: Path, *flags: str) -> Path:
    """Compile the core without its binding, and the program that counts."""
    folders = ("shm", "sync", "kernels", "move", "reduce")
    sources = [path for name in folders for path in CORE.glob(f"{name}/*.c")]
    counter = ROOT / "scripts" / "count_lines.c"
    objects = []
    for source in [counter, *sources]:
        target = f"{program}-{source.parent.name}-{source.stem}.o"
        # The functions that count are not counted themselves, and slow ones do.
        chosen = [f for f in flags if source != counter or f.startswith("-D")]
        level = ["-O1"] if flags else []
        compiler = ["gcc", f"@{CORE / 'flags'}", *level, f"-I{CORE}", *chosen]
        run([*compiler, "-c", str(source), "-o", target])
        objects.append(target)
    wrapped = ["-Wl,--wrap=memcpy"] if flags else []
    run(["gcc", "-pthread", *wrapped, *objects, "-o", str(program)])
    return program


def run(argv: list[str]) -> str:
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def arguments(options: argparse.Namespace, members: int, calls: int) -> list[str]:
    tuning = Tuning.measured(members, options.cores)
    # Threads poll as members that share cores do: how they wait changes no other count.
    sizes = (tuning.oneshot_bytes, tuning.block_bytes, 0)
    return [str(n) for n in (members, options.cache, calls, *sizes)]


def instructions(
    options: argparse.Namespace, members: int, plain: Path, task: int
) -> str:
    """Return a member's instructions in a call, its waits left out."""
    calls = 10
    argv = [str(plain), *arguments(options, members, calls), str(task)]
    valgrind = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--fair-sched=yes",
            "--toggle-collect=measured_call",
            "--toggle-collect=wait_on",
            *argv,
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    collected = re.search(r"Collected : (\d+)", valgrind.stderr)
    if collected is None:
        raise SystemExit(valgrind.stderr)
    return str(int(collected[1]) // members // (calls + WARM_UP))


if __name__ == "__main__":
    main()
