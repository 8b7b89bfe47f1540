"""Jobs whose instances take themselves to be on several hosts, below a real mpirun."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from popdist.environment import INSTANCES_PER_HOST
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
    "Make a call that fails, and print the error with how long it took."
    began = time.monotonic()
    try:
        call()
    except PopdistError as error:
        lost = getattr(error, "instances", ())
        waited = time.monotonic() - began
        print(f"{type(error).__name__}{lost or ''}: {error}")
        return waited
    print("no error")
"""


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
    timeout: float = 50.0,
) -> Ran:
    """Run a program in instances of which each host has so many.

    Args:
        rows: How many replicas each instance owns; one by default.
    """
    size = sum(per_host)
    told = jobs.environments(rows or (1,) * size)
    for one in told:
        one[INSTANCES_PER_HOST] = ",".join(map(str, per_host))
    place = folder / f"job{random.randrange(10**9)}"
    place.write_text(json.dumps(told))
    program = folder / f"{place.name}.py"
    program.write_text(PROLOGUE + dedent(body))
    hydra = ROOT / ".venv-mpich" in Path(mpirun).parents
    options = [] if hydra else ["--allow-run-as-root", "--oversubscribe"]
    process = subprocess.run(
        [mpirun, *options, "-n", str(size), sys.executable, str(program), str(place)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **_library(mpirun)},
        capture_output=True,
        timeout=timeout,
        check=False,
    )

    def text(rank: int, kind: str) -> str:
        path = Path(f"{place}.{rank}.{kind}")
        return path.read_text() if path.exists() else ""

    ended = [Ended(text(rank, "out"), text(rank, "err")) for rank in range(size)]
    return Ran(process.returncode, ended)


def _library(mpirun: str) -> dict[str, str]:
    """Return the variable by which mpi4py loads the library of this mpirun."""
    folder = Path(mpirun).parent.parent / "lib"
    for name in ("libmpi.so.40", "libmpi.so.12"):
        if (folder / name).exists():
            return {"MPI4PY_LIBMPI": str(folder / name)}
    return {}
