"""Jobs whose instances take themselves to be on several hosts, below a real mpirun."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from popdist.environment import INSTANCES_PER_HOST, LINKS
from poprun.mpirun.identify import detect
from poprun.popctl.machine_checks import mpich_segments, unused_segments
from tests import jobs
from tests.jobs import ROOT

# What every instance begins with. It is told what poprun tells the instances of a job
# on several hosts, and writes to files of its own.
PROLOGUE = """
import json, os, signal, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")))
with open(sys.argv[1]) as file:
    os.environ |= json.load(file)[rank]
sys.stdout = open(f"{sys.argv[1]}.{rank}.out", "w", buffering=1)
os.dup2(os.open(f"{sys.argv[1]}.{rank}.err", os.O_CREAT | os.O_WRONLY), 2)
import numpy as np
import popdist
from popdist import collectives
from popdist.engine.spec import reference
from popdist.errors import PopdistError

def fail(call):
    "Make a call that fails, and print the error."
    try:
        call()
    except PopdistError as error:
        lost = getattr(error, "instances", ())
        print(f"{type(error).__name__}{lost or ''}: {error}")
    else:
        print("no error")
"""


# Makes every operation, and compares the results with the specification. Few elements
# go between hosts with their rows, more of them as nodes, in blocks.
OPERATIONS = """
group = popdist.instance_group()
size = group.size
others = [np.random.default_rng(i) for i in range(size)]

def check(name, given, expected):
    assert np.array_equal(given, expected, equal_nan=True), (rank, name)

def arrays(count, dtype):
    return [(o.random(count) * 8 - 4).astype(dtype) for o in others]

dtypes = ["float32", "float64", "float16", "bool", "int8", "int16", "int32", "int64"]
dtypes += ["uint8", "uint16", "uint32", "uint64"]
for count in (0, 1, 7, 1001, 300_017):
    for dtype in dtypes if count < 2000 else dtypes[:4]:
        xs = arrays(count, dtype)
        for op in ("sum", "min", "max", "prod", "mean"):
            if (dtype, op) != ("bool", "mean"):
                result = reference.all_reduce([x[None] for x in xs], op)
                check((count, dtype, op), group.all_reduce(xs[rank], op), result)
for count in (size, size * 70_001):
    xs = arrays(count, "float32")
    rows = [x[None] for x in xs]
    own = xs[rank].reshape(size, -1)
    scattered = reference.reduce_scatter(rows)[rank][0]
    check("reduce_scatter", group.reduce_scatter(xs[rank]), scattered)
    for root in range(size):
        total = group.reduce(xs[rank], "sum", root)
        if rank == root:
            check("reduce", total, reference.all_reduce(rows))
        x = xs[rank] if rank == root else np.zeros_like(xs[rank])
        check("broadcast", group.broadcast(x, root, out=x), xs[root])
        found = group.gather(xs[rank][: count // 2 + rank], root)
        for peer in range(size if rank == root else 0):
            check("gather", found[peer], xs[peer][: count // 2 + peer])
        part = group.scatter(own if rank == root else None, root)
        check("scatter", part, xs[root].reshape(size, -1)[rank])
    for peer, x in enumerate(group.all_gather(xs[rank][: count // 2 + rank])):
        check("all_gather", x, xs[peer][: count // 2 + peer])
    parts = np.stack([x.reshape(size, -1)[rank] for x in xs])
    check("all_to_all", group.all_to_all(own, out=own.copy()), parts)
    there, after = np.empty_like(xs[0]), (rank + 1) % size
    for turn in range(size):
        if rank == turn:
            group.send(xs[rank], after)
        elif rank == (turn + 1) % size:
            group.recv(there, turn)
    check("recv", there, xs[rank - 1])
small, large = arrays(5, "float32"), arrays(300_017, "float32")
first, second = group.grouped_all_reduce(
    [small[rank], large[rank]], out=[small[rank], large[rank]]
)
group.barrier()
print(group.last_algorithm, group.transport.__class__.__name__)
"""


# What instances do under poprun: the one of the second argument dies while the others
# are in a call, or before one that they make after the seconds of a fifth argument.
# Each of these writes what it finds to a file of its own, in the folder of the third.
DEATH = """
import json, os, signal, sys, time
if sys.argv[1]:
    os.environ["POPDIST_INSTANCES_PER_HOST"] = sys.argv[1]
import numpy as np
import popdist
group = popdist.instance_group()
group.barrier()
if group.rank == int(sys.argv[2]):
    time.sleep(0.5)
    with open(f"{sys.argv[3]}/death", "w") as file:
        file.write(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(float(*sys.argv[5:]))
try:
    group.all_reduce(np.ones(int(sys.argv[4])))
except popdist.PeerLostError as error:
    with open(f"{sys.argv[3]}/{group.rank}", "w") as file:
        json.dump([time.monotonic(), list(error.instances), str(error)], file)
# One that ends before the last of them has the error would be named, too.
others = {*range(group.size)} - {int(sys.argv[2])}
while not all(os.path.exists(f"{sys.argv[3]}/{rank}") for rank in others):
    time.sleep(0.02)
"""


# In place of an mpirun: the instances are started without one, and linked by TCP.
TCP = "tcp"


class Ended(NamedTuple):
    """What an instance has printed."""

    out: str
    err: str


class Ran(NamedTuple):
    """A finished job: mpirun's status, and what each instance printed."""

    code: int
    instances: list[Ended]

    @property
    def outputs(self) -> list[str]:
        """What the instances printed, if all of them ended well."""
        errors = [one.err for one in self.instances]
        assert (self.code, errors) == (0, [""] * len(errors))
        return [one.out.strip() for one in self.instances]


def run(
    mpirun: str,
    per_host: Sequence[int],
    body: str,
    folder: Path,
    *,
    rows: Sequence[int] = (),
    timeout: float = 200.0,
) -> Ran:
    """Run a program in instances of which each host has so many.

    Args:
        rows: How many replicas each instance owns; one by default.
    """
    size = sum(per_host)
    told = jobs.environments(rows or (1,) * size)
    for one in told:
        one[INSTANCES_PER_HOST] = ",".join(map(str, per_host))
    place = folder / f"job{secrets.token_hex(4)}"
    place.write_text(json.dumps(told))
    program = folder / f"{place.name}.py"
    program.write_text(PROLOGUE + dedent(body))
    if mpirun == TCP:
        code = _run_over_tcp(told, place, program, timeout)
        return Ran(code, _outputs(place, size))
    hydra = ROOT / ".venv-mpich" in Path(mpirun).parents
    options = [] if hydra else ["--allow-run-as-root", "--oversubscribe"]
    before = _segments()
    process = subprocess.run(
        [mpirun, *options, "-n", str(size), sys.executable, str(program), str(place)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **_library(mpirun)},
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    _remove_segments(_segments() - before)
    return Ran(process.returncode, _outputs(place, size))


def free_port() -> int:
    """Return a port at which nothing listens.

    It is below those that the kernel chooses from, by default 32768 and higher: another
    test may open thousands of connections before the port is used. Each worker of
    pytest has ports of its own, because nothing listens there until a test uses them.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + worker % 10 * 1000
    while True:
        port = first + secrets.randbelow(1000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _run_over_tcp(
    told: list[dict[str, str]], place: Path, program: Path, timeout: float
) -> int:
    """Run the instances without an mpirun; return the first status but 0."""
    links = f"tcp://127.0.0.1:{free_port()}/{secrets.token_hex(8)}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), LINKS: links}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(place)],
            env={**environ, "PMI_RANK": f"{rank}"},
        )
        for rank in range(len(told))
    ]
    until = time.monotonic() + timeout
    try:
        codes = [one.wait(until - time.monotonic()) for one in processes]
        return next(filter(None, codes), 0)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _outputs(place: Path, size: int) -> list[Ended]:
    """Return what the instances have written to their files."""

    def text(rank: int, kind: str) -> str:
        path = Path(f"{place}.{rank}.{kind}")
        return path.read_text() if path.exists() else ""

    return [Ended(text(rank, "out"), text(rank, "err")) for rank in range(size)]


def _segments() -> set[Path]:
    return set(map(Path, mpich_segments()))


def _remove_segments(segments: set[Path]) -> None:
    """Remove those that no process uses, as poprun does after its jobs.

    MPICH leaves them when a process ends while MPI starts. One that is killed may be
    ending for long on a busy machine. Jobs of other tests use theirs until they end,
    and one that makes its file now may be seen with it only by a second look.
    """
    unused_before: set[Path] = set()
    until = time.monotonic() + 60
    while segments and time.monotonic() < until:
        unused = segments.intersection(map(Path, unused_segments()))
        for segment in unused & unused_before:
            segment.unlink(missing_ok=True)
        segments = segments & _segments()
        unused_before = unused
        time.sleep(0.1)


def _library(mpirun: str) -> dict[str, str]:
    """Return the variable by which mpi4py loads the library of this mpirun."""
    libmpi = detect(mpirun, {}).libmpi
    return {"MPI4PY_LIBMPI": libmpi} if libmpi else {}
