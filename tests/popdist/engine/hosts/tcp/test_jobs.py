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


@pytest.mark.parametrize("per_host", [(1, 1), (1, 2, 2), (1, 1, 1, 1, 1)])
def test_every_operation_equals_the_specification(
    tmp_path: Path, per_host: Sequence[int]
) -> None:
    ran = run(TCP, per_host, OPERATIONS, tmp_path)

    assert ran.outputs == ["direct HostsTransport"] * sum(per_host)


@pytest.mark.parametrize(
    ("victim", "count"), [(0, 3), (1, 1_000_000), (3, 3), (3, 1_000_000)]
)
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


@pytest.mark.parametrize("call", ["all_reduce", "all_gather", "all_to_all"])
def test_the_arrays_of_a_call_that_has_failed_are_freed(
    tmp_path: Path, call: str
) -> None:
    body = """
    import gc, weakref
    group = popdist.instance_group()
    group.barrier()
    if rank == 3:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    array = np.ones((4, 800_000))
    weak = weakref.ref(array)
    try:
        group.CALL(array)
    except PopdistError as error:
        name = type(error).__name__
    del array
    gc.collect()
    print(name, weak() is None)
    others = {*range(3)}
    while not all(os.path.getsize(f"{sys.argv[1]}.{n}.out") for n in others):
        time.sleep(0.01)
    """

    ran = run(TCP, (1, 1, 2), body.replace("CALL", call), tmp_path)

    assert [one.out for one in ran.instances[:3]] == ["PeerLostError True\n"] * 3


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


def test_a_group_is_left_though_an_instance_without_a_connection_is_stopped(
    tmp_path: Path,
) -> None:
    body = """
    from pathlib import Path
    from popdist.engine.hosts import world
    world._REACH_SECONDS = 0.5
    group = popdist.instance_group()
    stopped = Path(sys.argv[1] + ".pid")
    if rank == 2:
        stopped.with_suffix(".new").write_text(str(os.getpid()))
        stopped.with_suffix(".new").rename(stopped)
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 1:
        while not stopped.exists():
            time.sleep(0.01)
        pid = int(stopped.read_text())
        while Path(f"/proc/{pid}/stat").read_text().split()[2] != "T":
            time.sleep(0.01)
        group.close()
        print("closed")
        os.kill(pid, signal.SIGCONT)
    """

    assert run(TCP, (1, 1, 1), body, tmp_path).outputs == ["", "closed", ""]


def run_below_torchrun(
    tmp_path: Path, program: str, per_node: int, links: str = ""
) -> list[str]:
    """Run a program in instances on each of two nodes; return what they print."""
    path = tmp_path / "program.py"
    path.write_text(program)
    torchrun = (sys.executable, "-m", "torch.distributed.run")
    shape = "--nnodes", "2", "--nproc-per-node", f"{per_node}"
    address = "--master-addr", "127.0.0.1", "--master-port", str(free_port())
    agents = [
        subprocess.Popen(
            [*torchrun, *shape, "--node-rank", node, *address, path],
            env={**os.environ, "PYTHONPATH": str(ROOT), LINKS: links},
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in "01"
    ]
    outputs = [agent.communicate(timeout=200)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0]
    return "".join(outputs).split()


def test_instances_of_torchrun_need_no_mpi(tmp_path: Path) -> None:
    program = (
        "import numpy as np, popdist\n"
        "group = popdist.instance_group()\n"
        "total = group.all_reduce(np.full(3, group.rank + 1.0))[0]\n"
        "print(f'{total}\\n', end='', flush=True)\n"
    )
    links = f"tcp://127.0.0.1:{free_port()}/a secret of this job"

    assert run_below_torchrun(tmp_path, program, 2, links) == ["10.0"] * 4


# Each is on a host of its own for popdist, though not for the kernel. Afterwards other
# groups use the same links.
TORCH = """
import sys, numpy as np, popdist, popdist.torch, torch, torch.distributed as dist
dist.init_process_group("popdist")
rank = dist.get_rank()
dist.all_reduce(tensor := torch.full((3,), rank + 1.0))
group = popdist.instance_group()
total = group.all_reduce(np.full(3, 1.0))[0]
# In one piece, because another process writes to the same pipe.
sys.stdout.write(f"{tensor[0]},{total},{type(group.transport).__name__}\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""


def test_the_store_of_torchrun_tells_where_the_links_begin(tmp_path: Path) -> None:
    outputs = run_below_torchrun(tmp_path, TORCH, 1)

    assert outputs == ["3.0,2.0,HostsTransport"] * 2
