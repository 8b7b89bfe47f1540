"""Jobs over TCP: deaths of instances, and jobs of torchrun."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from popdist.environment import LINKS
from tests.host_jobs import OPERATIONS, TCP, free_port, run
from tests.jobs import ROOT


@pytest.mark.parametrize("per_host", [(1, 1), (2, 1), (1, 2, 2), (1, 1, 1, 1, 1)])
def test_every_operation_equals_the_specification(
    tmp_path: Path, per_host: Sequence[int]
) -> None:
    ran = run(TCP, per_host, OPERATIONS, tmp_path)

    assert ran.outputs == ["direct HostsTransport"] * sum(per_host)


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("count", [3, 1_000_000])
def test_the_death_of_an_instance_ends_calls_on_all_hosts(
    tmp_path: Path, victim: int, count: int
) -> None:
    body = f"""
    group = popdist.instance_group()
    group.barrier()
    if rank == {victim}:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    fail(lambda: group.all_reduce(np.ones({count})))
    # One that ends before the last of them has the error would be named, too.
    others = {{*range(4)}} - {{{victim}}}
    while not all(os.path.getsize(f"{{sys.argv[1]}}.{{n}}.out") for n in others):
        time.sleep(0.01)
    """

    ran = run(TCP, (2, 2), body, tmp_path)

    assert ran.code == -9
    for rank in {0, 1, 2, 3} - {victim}:
        assert ran.instances[rank].out.startswith(f"PeerLostError({victim},): ")
        assert ran.instances[rank].err == ""


def test_the_death_of_all_instances_of_a_host_is_detected_by_the_others(
    tmp_path: Path,
) -> None:
    body = """
    group = popdist.instance_group()
    group.barrier()
    if rank in (1, 2):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    fail(lambda: group.all_reduce(np.ones(3)))
    """

    ran = run(TCP, (1, 2, 1), body, tmp_path)

    for rank in (0, 3):
        assert re.match(r"PeerLostError\([12],\): ", ran.instances[rank].out)


def test_instances_of_torchrun_need_no_mpi(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, popdist\n"
        "group = popdist.instance_group()\n"
        "print(group.all_reduce(np.full(3, group.rank + 1.0))[0])\n"
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2")
    address = "--master-addr", "127.0.0.1", "--master-port", str(free_port())
    links = f"tcp://127.0.0.1:{free_port()}/a secret of this job"

    agents = [
        subprocess.Popen(
            [
                *torchrun,
                "--node-rank",
                node,
                "--nproc-per-node",
                "2",
                *address,
                program,
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT), LINKS: links},
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in "01"
    ]

    outputs = [agent.communicate(timeout=200)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0]
    assert "".join(outputs).split() == ["10.0"] * 4
