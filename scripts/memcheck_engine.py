"""Run the engine's calls from Python under valgrind's memcheck.

    python scripts/memcheck_engine.py

It starts itself again under valgrind, as two members that make every operation on
several dtypes. Python, numpy and the C library have findings of their own, so only
those count that have the engine's core on their stack. The processor that valgrind
shows its programs has no AVX-512, so the members use AVX2 at best.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import ml_dtypes
import numpy as np

from popdist.engine.group import Group
from popdist.engine.meet.meeting import Meeting
from popdist.engine.shm.shm_transport import ShmTransport
from popdist.engine.spec.dtypes import code_of
from popdist.engine.tuning import Tuning

CORE = "/popdist/engine/_core"
# One member has two rows, so that no operation finds members alike.
REPLICAS = (2, 1)
DTYPES = ("float32", "float16", ml_dtypes.bfloat16, "float64", "int8", "int64", "bool")
# Less than a line, a few of them and a rest, and several blocks.
LENGTHS = (0, 3, 33, 40_003)
# Small blocks: valgrind is slow, and the ways through the code are the same.
TUNING = Tuning(oneshot_bytes=2048, block_bytes=1 << 16, spin_us=0)
# The end of a pipe without a writer.
SILENT, _OPEN = os.pipe()
# Under valgrind all of it takes half a minute.
LONG = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--member", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return as_members(options.member) if options.member else under_valgrind()


def under_valgrind() -> int:
    """Run the members, and print the errors of memcheck in the core."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["valgrind", "-q", "--xml=yes"]
        words += ["--num-callers=40", "--fair-sched=yes"]
        words += [f"--xml-file={folder}/%p.xml", sys.executable, __file__]
        # Python's own allocator would hide which memory is in use.
        environ = {**os.environ, "PYTHONMALLOC": "malloc", "OPENBLAS_NUM_THREADS": "1"}
        name = f"memcheck-{os.getpid()}"
        code = subprocess.call([*words, "--member", name], env=environ)
        files = sorted(Path(folder).glob("*.xml"))
        errors = [error for file in files for error in findings(file)]
    print(*errors, sep="\n\n", end="\n\n" if errors else "")
    print(f"{len(files)} processes, {len(errors)} findings in the core.")
    return 1 if code or errors or len(files) != len(REPLICAS) else 0


def findings(file: Path) -> list[str]:
    """Return the errors of one process that have the core on their stack."""
    errors = []
    try:
        for _, element in ElementTree.iterparse(file):
            if element.tag == "error" and (error := finding(element)):
                errors.append(error)
    except ElementTree.ParseError:
        errors.append(f"Process {file.stem} did not come to its end.")
    return errors


def finding(error: ElementTree.Element) -> str | None:
    """Return an error in words, down to where Python calls the core."""
    frames = list(error.iter("frame"))
    own = [CORE in (frame.findtext("obj") or "") for frame in frames]
    # What Python still holds when it ends is no leak, and of no use to look at.
    if not any(own) or error.findtext("kind", "").startswith("Leak"):
        return None
    own_frames = frames[: len(own) - own[::-1].index(True) + 1]
    return "\n    ".join([message(error), *map(describe, own_frames)])


def message(error: ElementTree.Element) -> str:
    return error.findtext("what") or error.findtext("xwhat/text") or "?"


def describe(frame: ElementTree.Element) -> str:
    where = frame.findtext("file") or frame.findtext("obj") or "?"
    line = frame.findtext("line")
    return f"{frame.findtext('fn') or '?'} ({where}{f':{line}' if line else ''})"


def as_members(name: str) -> int:
    """Be two members, the second one a fork; return 0 if both came to their end."""
    # valgrind knows no such call. No member dies here, so the stand-in never wakes.
    os.pidfd_open = lambda pid, flags=0: os.dup(SILENT)
    child = os.fork()
    rank = 0 if child else 1
    meeting = Meeting(name, rank, range(len(REPLICAS)), LONG, LONG)
    group = Group(ShmTransport.meet(meeting, tuning=TUNING), replicas=REPLICAS)
    for dtype in DTYPES:
        for length in LENGTHS:
            every_operation(group, np.dtype(dtype), length)
    between_members(group.view(None))
    group.close()
    if not child:
        return 0
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def every_operation(group: Group, dtype: "np.dtype[np.generic]", length: int) -> None:
    rows, total = group.num_local_replicas, group.num_replicas
    x = np.arange(rows * length).reshape(rows, length).astype(dtype)
    parts = np.ones((rows, total, length), dtype)
    ops = ["sum", "min", "max", "prod"] + ["mean"] * (dtype.kind != "b")
    reduce: Callable[..., object] = group.all_reduce
    for op in ops:
        for algorithm in ("auto", "oneshot", "direct", "ring"):
            reduce(x, op, algorithm=algorithm)
    in_arena = group.empty(x.shape, dtype)
    in_arena[...] = x
    for op in ops:
        reduce(in_arena, op, out=in_arena)
    reduce(x[:, ::-1], out=np.empty_like(x)[:, ::-1])
    group.grouped_all_reduce([x, x[:, :1], x])
    group.all_reduce(x, async_op=True, name="named").wait()
    group.reduce(x, root=total - 1)
    group.reduce_scatter(parts)
    group.all_gather([row[:length] for row in x])
    group.gather(x, 1)
    group.broadcast(x, total - 1)
    group.scatter(parts[0] if group.rank == 0 else None)
    group.all_to_all(parts)
    # Its replicas share each result.
    table = [1, length, *[row.ctypes.data for row in x], x.ctypes.data]
    group.all_reduce_table(np.array(table, np.uint64).tobytes(), code_of(dtype), 0)


def between_members(group: Group) -> None:
    for length in (3, 40_003):
        x = np.ones(length, np.float32)
        if group.rank == 0:
            group.send(x, 1)
        else:
            group.recv(x, 0)
    group.barrier()


if __name__ == "__main__":
    sys.exit(main())
