"""Programs of torch.distributed below poprun: ours, and those written for torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Poprun, Ran, mpirun_of, running_poprun

PROGRAM = """
import os, sys
import torch, torch.distributed as dist
backend = sys.argv[1]
if backend == "popdist":
    import popdist.torch
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        assert name in os.environ, name
dist.init_process_group(backend)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
total = torch.tensor([1], dtype=torch.bfloat16)
dist.all_reduce(total)
gradient = None
if backend == "popdist":
    torch.ops.popdist.all_reduce_(total)
    layer = torch.nn.Linear(2, 1, bias=False)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    model(torch.full((1, 2), float(rank + 1))).sum().backward()
    gradient = layer.weight.grad.flatten().tolist()
dist.destroy_process_group()
print(backend, os.environ["LOCAL_RANK"], gradient, total.item(), flush=True)
if backend == "gloo":
    os._exit(0)  # threads of gloo that still run abort a process at its end
"""


def test_scripts_find_each_other_by_the_variables_that_poprun_sets(
    poprun: Poprun,
) -> None:
    script = poprun.script("train.py", PROGRAM)
    for backend, found in (("popdist", "[1.5, 1.5] 4.0"), ("gloo", "None 2.0")):
        ran = poprun(
            *("--num-instances", "2", "--num-replicas", "2", "python", script),
            backend,
            environ={"OMP_NUM_THREADS": "1"},
        )
        assert ran.code == 0, ran.stderr
        lines = [line.split(":", 1)[-1] for line in ran.stdout.splitlines()]
        assert sorted(lines) == [f"{backend} {rank} {found}" for rank in range(2)]


UNCHANGED = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group(*sys.argv[1:])
rank = dist.get_rank()
mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
groups = [dist.group.WORLD, dist.new_group(backend="gloo"), mesh.get_group("b")]
dist.monitored_barrier()
total = torch.tensor([rank + 1.0])
for group in groups:
    dist.all_reduce(total, group=group)
try:
    dist.new_group(backend="nccl")
except (RuntimeError, ValueError) as error:
    # A torch for CPUs, one for CUDA up to 2.14, and from 2.15 on.
    reasons = ["doesn't have NCCL built in", "no GPUs found", "least one CUDA device"]
    assert any(reason in str(error) for reason in reasons), error
else:
    raise SystemExit("nccl")
names = {group.name() for group in groups}
answers = [dist.get_backend(group) for group in groups]
os.write(1, f"{names} {answers} {total.item()}\\n".encode())  # in one piece
dist.destroy_process_group()
"""


def test_programs_that_name_no_backend_use_popdist_unchanged(poprun: Poprun) -> None:
    script = poprun.script("train.py", UNCHANGED)
    ran = poprun(
        *("-n", "2", "--torch-backend", "popdist", "python", script),
        environ={"OMP_NUM_THREADS": "1"},
    )

    assert ran.code == 0, ran.stderr
    assert [line.split(":", 1)[-1] for line in ran.stdout.splitlines()] == [
        "{'popdist'} ['undefined', 'gloo', 'undefined'] 12.0"
    ] * 2


def test_the_variable_serves_programs_for_gloo_below_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNCHANGED)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(script), "gloo"),
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "POPDIST_TORCH_BACKEND": "popdist",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "{'popdist'} ['gloo', 'gloo', 'gloo'] 12.0\n" * 2


WITHOUT_PORT = """
import os, torch, torch.distributed as dist, popdist.torch
for _ in range(2):
    dist.init_process_group("popdist", init_method="popdist://")
    dist.all_reduce(total := torch.tensor([dist.get_rank() + 1]))
    dist.all_reduce(total, group=dist.new_group())
    dist.destroy_process_group()
os.write(1, f"{total.item()}\\n".encode())  # in one piece
try:
    dist.init_process_group("popdist", init_method="popdist://", world_size=5, rank=0)
except ValueError as error:
    assert "Leave rank and world_size out." in str(error), error
else:
    raise SystemExit(1)
"""


# Both versions of Open MPI set the same variables.
@pytest.mark.mpi
@pytest.mark.parametrize("mpi", ["openmpi5", "hydra"])
def test_a_bare_mpirun_is_enough_for_process_groups(mpi: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(WITHOUT_PORT)
    root = ["--allow-run-as-root", "--oversubscribe"] if mpi == "openmpi5" else []
    ran = subprocess.run(
        [mpirun_of(mpi), *root, "-n", "2", sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert (ran.returncode, ran.stdout) == (0, "6\n6\n"), ran.stderr


def test_a_program_without_a_launcher_is_a_process_group_of_one(
    tmp_path: Path,
) -> None:
    script = tmp_path / "program.py"
    script.write_text(WITHOUT_PORT)
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr


# None that has the error ends before the other has it, too: it would be named as well.
ENDS_EARLY = """
import os, sys, time, datetime
rank = int(os.environ["RANK"])
if rank == int(sys.argv[1]):
    raise SystemExit
import torch.distributed as dist, popdist.torch
try:
    dist.init_process_group("popdist", timeout=datetime.timedelta(seconds=1000))
except dist.DistBackendError as error:
    os.write(1, f"{error}\\n".encode())
open(f"has-error.{rank}", "w").close()
[other] = {0, 1, 2} - {rank, int(sys.argv[1])}
while not os.path.exists(f"has-error.{other}"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("dead", [0, 1])
def test_an_instance_that_ends_before_the_process_group_is_missed(
    poprun: Poprun, dead: int
) -> None:
    script = poprun.script("program.py", ENDS_EARLY)
    ran = poprun(
        *("--num-instances", "3", "--num-replicas", "3", "python", script, str(dead)),
        environ={"OMP_NUM_THREADS": "1"},
    )

    assert ran.code == 0, ran.stderr
    assert [line.split(":", 1)[-1] for line in ran.stdout.splitlines()] == [
        f" Instance {dead} ended before it could join the group of instances 0, 1 and "
        "2. Look above for its last output."
    ] * 2


LEAVES_NOTHING = """
import contextlib, os, signal, sys
import torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
dist.all_reduce(total := torch.ones(3))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
with contextlib.suppress(RuntimeError):
    work = dist.all_reduce(total, async_op=True)
"""


@pytest.mark.parametrize("backend", ["gloo", "popdist"])
def test_program_that_leaves_no_group_ends_when_a_peer_has_died(
    poprun: Poprun, backend: str
) -> None:
    script = poprun.script("program.py", LEAVES_NOTHING)
    ran = poprun("-n", "2", "--keep-going", "python", script, backend)

    assert ran.stderr.splitlines()[-1].startswith(
        "poprun: error: Instance 1 on localhost was killed by SIGKILL"
    )
    assert "Instance 0" not in ran.stderr


FAILS_AND_ENDS_SLOWLY = """
import time
import torch, torch.distributed as dist
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(3)
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    slow = Slow()
    raise ValueError("nan")
dist.all_reduce(torch.ones(3))
"""


def test_a_peer_of_gloo_that_fails_slowly_is_the_cause(poprun: Poprun) -> None:
    script = poprun.script("program.py", FAILS_AND_ENDS_SLOWLY)
    ran = poprun("-n", "2", "python", script)

    assert ran.stderr.splitlines()[-1] == (
        "poprun: error: Instance 1 on localhost exited with code 1: ValueError: nan"
    )


# Instance 1 makes each call when its file exists.
STALLS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if "backward" in sys.argv:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
dist.barrier()
for call in sys.argv[1:]:
    while dist.get_rank() == 1 and not os.path.exists(call):
        time.sleep(0.02)
    if call == "backward":
        model(torch.ones(1, 2)).sum().backward()
    else:
        dist.all_reduce(torch.ones(3))
"""
STALLED_CALLS = {"backward": "DDP backward", "all_reduce": "all_reduce"}


@pytest.fixture(scope="module")
def stall_warnings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return poprun's warning about each of STALLED_CALLS, of one job."""
    folder = tmp_path_factory.mktemp("stalls")
    with running_poprun(folder) as poprun:
        poprun.script("stalls.py", STALLS)
        job = poprun.start(
            *("-n", "3", "--mpirun", "local", "python", "stalls.py", *STALLED_CALLS),
            environ={"POPDIST_STALL_TIMEOUT": "1"},
            stdout=subprocess.DEVNULL,
        )
        assert job.stderr is not None
        warnings = {}
        for call, name in STALLED_CALLS.items():
            # An instance that is late may be missing in an earlier warning.
            stalled = f" s in {name} for instance 1.".encode()
            warnings[call] = next(line for line in job.stderr if stalled in line)
            (folder / call).touch()
        job.communicate(timeout=200)
    return {call: warning.decode() for call, warning in warnings.items()}


@pytest.mark.parametrize(("call", "name"), STALLED_CALLS.items())
def test_a_stall_with_gloo_is_reported_with_who_is_missing(
    stall_warnings: dict[str, str], call: str, name: str
) -> None:
    # An instance that has used a CPU until a moment ago may not be known to wait.
    assert re.fullmatch(
        r"poprun: warning: Instances? (0 and 2 have|0 has|2 has) waited \d+ s in "
        rf"{name} for instance 1\. 'popctl dump' shows where each of them is\.\n",
        stall_warnings[call],
    )


def test_a_stall_with_gloo_is_named_at_the_end_of_the_timeout(poprun: Poprun) -> None:
    poprun.script("stalls.py", STALLS)
    # A busy machine may need the longer timeout for the programs to come so far.
    for timeout in ("12", "60"):
        ran = poprun(
            *("-n", "3", "--mpirun", "local", "--timeout", timeout),
            *("python", "stalls.py", "all_reduce"),
            environ={"POPDIST_STALL_TIMEOUT": "1"},
        )
        assert ran.code == 124
        if "0 and 2 had waited" in ran.stderr:
            break
    if "waited" not in ran.stderr:
        pytest.skip("the machine was too slow for the programs to come so far")
    assert re.fullmatch(
        rf"poprun: error: The job took longer than the {timeout} s of --timeout and "
        r"was stopped\. Instances 0 and 2 had waited \d+ s in all_reduce for "
        r"instance 1\.",
        ran.stderr.splitlines()[-1],
    )


WAITS_FOR_CHILD = """
import socket, subprocess, sys
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
class Helper:
    def __init__(self):
        self.own, other = socket.socketpair()
        words = [sys.executable, "-Sc", "import sys; sys.stdin.read()"]
        self.child = subprocess.Popen(words, stdin=other)
        other.close()
    def __del__(self):
        self.own.close()
        print(self.child.wait(), flush=True)
helper = Helper()
"""


def test_a_socket_that_a_program_of_gloo_closes_last_of_all_is_closed(
    poprun: Poprun,
) -> None:
    script = poprun.script("program.py", WAITS_FOR_CHILD)

    ran = poprun("-n", "2", "--timeout", "100", "python", script)

    assert (ran.code, ran.stdout) == (0, "0\n0\n")


@pytest.mark.parametrize("options", [(), ("-I",)])
def test_a_program_of_torch_that_aborts_is_told_to_leave_its_groups(
    poprun: Poprun, options: tuple[str, ...]
) -> None:
    text = "import os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    # As C++ ends where a thread of a group still runs.
    words = b"terminate called without an active exception\n"
    poprun.script("aborts.py", f"{text}os.write(2, {words!r})\nos.abort()\n")

    ran = poprun("-n", "1", "--mpirun", "local", "python", *options, "aborts.py")

    assert ran.code == 134
    assert ran.stderr.splitlines()[-1].endswith(
        "Call torch.distributed.destroy_process_group() before the program ends: "
        "threads of a process group that still exists then may abort it."
    )


RESTARTED = """
import os, time, torch, torch.distributed as dist, popdist.torch
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank = int(os.environ["RANK"])
if rank == 0:
    time.sleep(attempt)
dist.init_process_group("popdist")
dist.all_reduce(total := torch.ones(1))
if (attempt, rank) == (0, 1):
    os._exit(3)
dist.all_reduce(total)
os.write(1, f"{attempt} {rank} {total.item()}\\n".encode())
dist.destroy_process_group()
"""


def test_torchrun_starts_a_job_again(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(RESTARTED)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "--max-restarts", "1", str(script)),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["1 0 4.0", "1 1 4.0"]


def test_poprun_starts_it_again_with_the_variables_of_torchrun(poprun: Poprun) -> None:
    script = poprun.script("program.py", RESTARTED)
    ran = poprun("-n", "2", "--max-restarts", "1", "python", script)

    assert ran.code == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["1 0 4.0", "1 1 4.0"]


MIXED = """
import os, sys, torch, torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
for backend in sys.argv[1:]:
    dist.init_process_group(backend)
    assert dist.get_backend() == backend
    layer = torch.nn.Linear(1, 1, bias=False)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    model(torch.full((1, 1), dist.get_rank() + 1.0)).sum().backward()
    if "meta" in backend:
        dist.all_reduce(torch.empty(1, device="meta"))
    os.write(1, f"{backend} {layer.weight.grad.item()}\\n".encode())
    dist.destroy_process_group()
"""
MIXED_BACKENDS = [
    "cpu:popdist,cuda:nccl",
    "cuda:nccl,cpu:popdist",
    "cpu:popdist,meta:fake",
]


@pytest.fixture(scope="module")
def mixed_job(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return one job that trains with each of MIXED_BACKENDS in turn."""
    with running_poprun(tmp_path_factory.mktemp("mixed")) as poprun:
        script = poprun.script("program.py", MIXED)
        return poprun("-n", "2", "python", script, *MIXED_BACKENDS)


@pytest.mark.parametrize("backend", MIXED_BACKENDS)
def test_popdist_has_the_cpu_tensors_of_a_group_with_another_backend(
    mixed_job: Ran, backend: str
) -> None:
    lines = mixed_job.stdout.splitlines()
    assert lines.count(f"{backend} 1.5") == 2, mixed_job.stderr


def test_groups_with_other_backends_end_well(mixed_job: Ran) -> None:
    assert mixed_job.code == 0, mixed_job.stderr
    assert len(mixed_job.stdout.splitlines()) == 2 * len(MIXED_BACKENDS)


SECOND = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group(backend="cpu:popdist,meta:gloo")
dist.all_reduce(total := torch.ones(1), group=group)
os.write(1, f"{group.name()} {type(group).__name__} {total.item()}\\n".encode())
dist.destroy_process_group()
"""


def test_a_program_of_gloo_makes_a_group_for_two_backends(poprun: Poprun) -> None:
    script = poprun.script("program.py", SECOND)
    ran = poprun("-n", "2", "python", script)

    assert (ran.code, ran.stdout) == (0, "popdist MixedGroup 2.0\n" * 2), ran.stderr


LAUNCHED = """
import os, torch, torch.distributed as dist
assert dist.is_torchelastic_launched()
dist.init_process_group("gloo")
dist.all_reduce(total := torch.ones(1))
os.write(1, f"{total.item()}\\n".encode())
dist.destroy_process_group()
"""


def test_rank_0_serves_the_store_in_a_job_that_torchrun_has_started(
    poprun: Poprun,
) -> None:
    script = poprun.script("program.py", LAUNCHED)
    of_torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    ran = poprun("-n", "2", "--timeout=100", "python", script, environ=of_torchrun)

    assert (ran.code, ran.stdout) == (0, "2.0\n2.0\n"), ran.stderr


def test_env_says_what_does_without_its_variables() -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import torch.distributed as dist, popdist.torch\n"
            "dist.init_process_group('popdist')",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ran.stderr.splitlines()[-1] == (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: "
        "environment variable RANK expected, but not set. For the backend popdist, "
        "init_method='popdist://' takes rank and size from poprun, mpirun, srun or "
        "torchrun, and makes a group of one without them."
    )
