"""Collectives among instances on hosts with networks, memory and processes apart."""

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from beds.bed import Bed
from beds.mpiruns import AS_ROOT, command, launcher
from conftest import mpirun_of

from tests.host_jobs import DEATH, OPERATIONS
from tests.jobs import ROOT

pytestmark = pytest.mark.mpi

PROLOGUE = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
import popdist
from popdist.engine.spec import reference
rank = popdist.instance_group().rank
"""
EPILOGUE = """
import socket
print(rank, socket.gethostname(), popdist.instance_group().last_algorithm, flush=True)
"""


def outputs(bed: Bed, mpi: str, program: str) -> list[str]:
    """Run a program in two instances of each host, and return their lines, sorted."""
    for host in bed.hosts:
        host.path("/tmp/program.py").write_text(PROLOGUE + program)
    words = [sys.executable, "/tmp/program.py"]
    mpirun = bed.front.start(
        *command(bed.hosts, mpi, 2, words), env=AS_ROOT, stdout=subprocess.PIPE
    )
    assert mpirun.stdout
    # Open MPI 5's mpirun sometimes hangs after all ranks have ended.
    lines = [mpirun.stdout.readline().decode() for _ in range(2 * len(bed.hosts))]
    bed.clean()
    mpirun.communicate()
    return sorted(lines)


@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4", "hydra"])
def test_every_operation_between_hosts_equals_the_specification(
    make_bed: Callable[..., Bed], mpi: str
) -> None:
    program = OPERATIONS.replace("print(", "0 and print(") + EPILOGUE

    lines = outputs(make_bed(hosts=2), mpi, program)

    assert lines == [f"{rank} h{rank // 2} direct\n" for rank in range(4)]


def test_the_local_launcher_links_hosts_by_tcp(bed: Bed) -> None:
    program = OPERATIONS.replace("print(", "0 and print(") + EPILOGUE
    for host in bed.hosts:
        host.path("/tmp/program.py").write_text(PROLOGUE + program)

    ran = bed.front.run(
        *("poprun", "--mpirun=local", "--host=h1,h2", "-n4", "--offline-mode=yes"),
        *("python3", "/tmp/program.py"),
        timeout=200,
    )
    bed.clean()

    assert (ran.returncode, ran.stderr) == (0, "")
    lines = sorted(ran.stdout.splitlines())
    assert lines == [f"{rank} h{1 + rank // 2} direct" for rank in range(4)]


def test_torchrun_on_two_hosts_needs_no_setting(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=2)
    # As in many installations, where a host's own name is an address of loopback.
    bed.front.run("sed", "-i", "1i 127.0.1.1 h0", "/etc/hosts")
    program = """
import subprocess, sys, popdist.torch, torch, torch.distributed as dist
dist.init_process_group("popdist")
dist.all_reduce(total := torch.full((3,), dist.get_rank() + 1.0))
sockets = subprocess.check_output(["ss", "-Hltnp"]).decode().splitlines()
own = {line.split()[3].split(":")[0] for line in sockets if "python" in line}
sys.stdout.write(f"{total[0]} {own}\\n")
dist.barrier()
dist.destroy_process_group()
"""
    processes = []
    for number, host in enumerate(bed.hosts):
        host.path("/tmp/program.py").write_text(program)
        argv = [
            "python3",
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc-per-node",
            "2",
        ]
        argv += ["--master-addr", "h0", "--master-port", "29555"]
        argv += ["--node-rank", f"{number}", "/tmp/program.py"]
        processes.append(host.start(*argv, stdout=subprocess.PIPE, text=True))

    outputs = [process.communicate(timeout=200)[0] for process in processes]

    assert outputs[0].splitlines() == ["10.0 {'10.31.0.1'}"] * 2
    assert outputs[1].splitlines() == ["10.0 {'10.31.0.2'}"] * 2


def test_links_listen_in_the_subnet_only_and_show_no_key(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    for number, host in enumerate(bed.hosts):
        host.run("ip", "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
    program = """
import os, subprocess, popdist
group = popdist.instance_group()
group.barrier()
if group.rank % 2 == 0:
    port, key = os.environ["POPDIST_LINKS"].rpartition(":")[2].split("/")
    seen = subprocess.check_output(["ps", "axww"]).decode()
    sockets = subprocess.check_output(["ss", "-Hltnp"]).decode()
    print(*sorted({line.split()[3].rpartition(":")[0]
        for line in sockets.splitlines() if "python" in line}), key in seen)
group.barrier()
"""

    ran = bed.front.run(
        *("poprun", "--mpirun=local", "--host=h0,h1", "-n4", "--offline-mode=yes"),
        *("--host-subnet=10.77.0.0/24", "-v", "python3", "-c", program),
        timeout=200,
    )

    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["10.77.0.1 False", "10.77.0.2 False"]
    assert "tcp://" not in ran.stderr


def test_a_slow_link_that_loses_packets_changes_no_result(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    bed.shape("1gbit", 2, 0.1)
    program = """
    group = popdist.instance_group()
    x = np.random.default_rng(rank).random(500_001)
    given = [np.random.default_rng(peer).random(500_001)[None] for peer in range(4)]
    assert np.array_equal(group.all_reduce(x), reference.all_reduce(given))
    """

    lines = outputs(bed, "hydra", program.replace("\n    ", "\n") + EPILOGUE)

    assert lines == [f"{rank} h{rank // 2} direct\n" for rank in range(4)]


@pytest.mark.parametrize(
    ("mpi", "instances", "called_after"),
    [
        # Seconds after the barrier: the instance dies after 0.5 s.
        *(("openmpi5", n, seconds) for n, seconds in ((2, "0"), (4, "0.55"), (4, "2"))),
        *((mpi, 2, "0.55") for mpi in ("openmpi4", "hydra", "local")),
        *((mpi, 4, seconds) for mpi, seconds in (("openmpi4", "2"), ("hydra", "0"))),
    ],
)
def test_the_death_of_an_instance_is_named_on_the_other_host(
    make_bed: Callable[..., Bed], mpi: str, instances: int, called_after: str
) -> None:
    bed = make_bed(hosts=2, shared_home=True)
    for host in bed.hosts:
        host.path("/tmp/program.py").write_text(PROLOGUE.split("import numpy")[0])
        with host.path("/tmp/program.py").open("a") as file:
            file.write(DEATH)

    ran = bed.front.run(
        *("poprun", "--mpirun", launcher(mpi), "--host", "h0,h1", "--keep-going"),
        *("--num-instances", str(instances), "--num-replicas", str(instances)),
        *("--offline-mode=yes", sys.executable, "/tmp/program.py"),
        *("", "0", "/root", "100000", called_after),
    )

    for rank in range(1, instances):
        found = bed.front.path(f"/root/{rank}")
        assert found.exists(), ran.stderr
        _, lost, text = json.loads(found.read_text())
        assert lost == [0]
        assert re.match(
            r"Instance 0 on h0 has ended, or closed the group, while instance \d on "
            r"h\d needed it for all_reduce \(sum, direct\) of 100000 float64\.",
            text,
        )
    assert ran.returncode == 137


def test_what_instances_tell_at_their_end_is_received_before_mpi_is_finalised(
    bed: Bed,
) -> None:
    # mpi4py finalises MPI here. UCX warns of messages that were not received.
    program = (
        "from mpi4py import MPI\n"
        "import numpy, popdist\n"
        "popdist.instance_group().all_reduce(numpy.ones(3))\n"
    )

    ran = bed.front.run(
        *("poprun", "--mpirun", mpirun_of("hydra"), "--host", "h0,h1", "-n", "4"),
        *("--offline-mode=yes", "python3", "-c", program),
        timeout=200,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
