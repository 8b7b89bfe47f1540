"""Frameworks on several hosts: what they compute there is what they do on one."""

import re

import pytest
from beds.bed import Bed
from conftest import ROOT, mpirun_of

from poprun.mpirun.identify import detect

pytestmark = pytest.mark.mpi

# It has a process group by each of the methods, one after the other.
TORCH = """
import sys

import torch
import torch.distributed as dist

import popdist.torch

for method in sys.argv[1:]:
    dist.init_process_group("popdist", method)
    rank = dist.get_rank()
    total = torch.full((1000,), rank + 1.0)
    dist.all_reduce(total)
    # Members 1 and 2 are on different hosts.
    pair = dist.new_group([1, 2])
    if rank in (1, 2):
        part = torch.full((3,), float(rank))
        dist.all_reduce(part, group=pair)
        if rank == 1:
            dist.send(part + 4, 2)
        else:
            dist.recv(part, 1)
        assert part.tolist() == ([3.0] * 3 if rank == 1 else [7.0] * 3), part
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
    model(torch.full((2, 64), float(rank))).sum().backward()
    print(method, total[0].item(), model.module.weight.grad.sum().item())
    dist.destroy_process_group()
"""
# The last is the mean of 2 * 64 * 8 * rank over four ranks.
TORCHS_NUMBERS = "10.0 1536.0"
METHODS = ["env://", "popdist://"]
# In a backward pass rank 0 begins two exchanges in another order than the others.
BACKWARD = """
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("popdist", timeout=timedelta(seconds=150))
groups = [dist.new_group(), dist.new_group()]
if dist.get_rank() == 0:
    groups.reverse()
works = []

def exchange(gradient):
    for group in groups:
        total = torch.ones(1 << 20)
        works.append(dist.all_reduce(total, group=group, async_op=True))

x = torch.ones(1, requires_grad=True)
x.register_hook(exchange)
x.sum().backward()
print([work.result()[0][0].item() for work in works if work.wait()])
"""
HOROVOD = """
import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.full((1000,), hvd.rank() + 1.0), op=hvd.Sum)
later = hvd.allreduce_async(torch.full((5,), hvd.rank() + 1.0), op=hvd.Sum, name="a")
places = hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
print(hvd.rank(), *places, total[0].item(), hvd.synchronize(later)[0].item())
"""
POPART = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import popart
import popdist.popart
from popart_models import one_weight, options, share_of
device = popdist.popart.getDevice()
total, first = popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()
made = options(1, 12 // total)
made.accumulationAndReplicationReductionType = popart.ReductionType.Mean
popdist.popart.configureSessionOptions(made)
share = share_of(total, first, popdist.getNumLocalReplicas())
weight = one_weight(made, share)
assert device.id == popdist.getDeviceId()
print(device.numIpus, device.isAttached, format(weight, ".7f"))
"""
# The hosts share /root, and each has a /tmp of its own.
SAVING = """
import os
import shutil

import numpy as np
import tensorflow as tf

from popdist import collectives
from popdist.tensorflow import PopDistStrategy

with PopDistStrategy().scope():
    layers = [tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64)]
    model = tf.keras.Sequential(layers)
checkpoint = tf.train.Checkpoint(model=model)
for folder in ("/root/saved", "/tmp/saved"):
    collectives.barrier()
    for _ in range(3):
        model.save(f"{folder}/model.keras")
        model.export(f"{folder}/exported", verbose=False)
        checkpoint.write(f"{folder}/checkpoint")
    collectives.barrier()
    loaded = tf.keras.models.load_model(f"{folder}/model.keras")
    exported = tf.saved_model.load(f"{folder}/exported")
    weights = loaded.get_weights(), [each.numpy() for each in exported.variables]
    checkpoint.read(f"{folder}/checkpoint").assert_existing_objects_matched()
    same = [np.array_equal(own[0], model.get_weights()[0]) for own in weights]
    print(*same, *sorted(os.listdir(folder)))
    collectives.barrier()
    shutil.rmtree(folder, ignore_errors=True)
"""
SOME_RANKS = """
import os

import popdist

if int(os.environ["OMPI_COMM_WORLD_RANK"]) in (0, 2):
    import horovod.torch as hvd

    hvd.init(comm=[0, 2])
"""
PLACES = [
    "0 0 2 0 2 10.0 10.0",
    "1 1 2 0 2 10.0 10.0",
    "2 0 2 1 2 10.0 10.0",
    "3 1 2 1 2 10.0 10.0",
]


@pytest.mark.parametrize("mpi", ["openmpi5", "hydra"])
def test_an_instance_that_ends_without_mpi_ends_the_start_of_mpi(
    bed: Bed, mpi: str
) -> None:
    ran = bed.front.run(
        *("poprun", "--mpirun", mpirun_of(mpi), "--host", "h0,h1", "-n", "4"),
        *("--offline-mode=yes", "python3", "-c", SOME_RANKS),
        timeout=200,
    )

    assert ran.returncode == 1
    assert re.search(
        r"HorovodInternalError: Instances? (1|3|1 and 3) ended without having started "
        r"MPI\. MPI connects the hosts, and starts only when all 4 instances of the "
        r"job take part: call hvd\.init\(\) in each of them, or make a group of all of "
        r"them first\.",
        ran.stderr,
    )


# Another test runs it with hydra.
@pytest.fixture(scope="module")
def torchs_output(common_bed: Bed) -> str:
    """Return the output of TORCH below poprun, with each of METHODS in one job."""
    # torch makes it in /tmp otherwise, and leaves it there.
    arguments = "-x TORCHINDUCTOR_CACHE_DIR=/root/inductor"
    return common_bed.front.output(
        *("poprun", "--mpirun", mpirun_of("openmpi5"), "--host", "h0,h1", "-n", "4"),
        *("--offline-mode=yes", "--mpi-global-args", arguments),
        *("python3", "-c", TORCH, *METHODS),
        timeout=200,
    )


@pytest.mark.usefixtures("bed")
@pytest.mark.parametrize("method", METHODS)
def test_torch_has_a_process_group_over_all_hosts(
    torchs_output: str, method: str
) -> None:
    lines = torchs_output.splitlines()
    assert len(lines) == 4 * len(METHODS)
    assert lines.count(f"{method} {TORCHS_NUMBERS}") == 4


def test_torch_has_a_process_group_over_all_hosts_below_a_bare_mpirun(
    bed: Bed,
) -> None:
    output = bed.front.output(
        *(mpirun_of("hydra"), "-hosts", "h0:2,h1:2", "-n", "4"),
        *("python3", "-c", TORCH, "popdist://"),
        env={
            "PYTHONPATH": str(ROOT),
            "MPI4PY_LIBMPI": detect(mpirun_of("hydra"), {}).libmpi or "",
            "TORCHINDUCTOR_CACHE_DIR": "/root/inductor",
        },
        timeout=200,
    )

    assert output == f"popdist:// {TORCHS_NUMBERS}\n" * 4


def test_torchs_exchanges_over_hosts_go_on_beside_a_backward_pass(bed: Bed) -> None:
    output = bed.front.output(
        *("poprun", "--mpirun", mpirun_of("hydra"), "--host", "h0,h1", "-n", "2"),
        *("--offline-mode=yes", "python3", "-c", BACKWARD),
        timeout=200,
    )

    assert output == "[2.0, 2.0]\n" * 2


def test_horovods_ranks_are_on_hosts_and_across_them(bed: Bed) -> None:
    output = bed.front.output(
        *("poprun", "--mpirun", mpirun_of("openmpi5"), "--host", "h0,h1", "-n", "4"),
        *("--offline-mode=yes", "--emulate-sdk=yes", "python3", "-c", HOROVOD),
        timeout=200,
    )

    assert sorted(output.splitlines()) == PLACES


def test_horovod_learns_the_hosts_from_mpi_where_the_launcher_does_not_tell(
    bed: Bed,
) -> None:
    libmpi = detect(mpirun_of("hydra"), {}).libmpi or ""

    output = bed.front.output(
        *(mpirun_of("hydra"), "-hosts", "h0:2,h1:2", "-n", "4"),
        *("python3", "-c", HOROVOD),
        env={
            "PYTHONPATH": f"{ROOT}/popdist/sdk/packages",
            "MPI4PY_LIBMPI": libmpi,
        },
        timeout=200,
    )

    assert sorted(output.splitlines()) == PLACES


def test_popart_trains_on_devices_of_several_hosts(bed: Bed) -> None:
    output = bed.front.output(
        *("poprun", "--mpirun", mpirun_of("hydra"), "--host", "h0,h1", "-n", "2"),
        *("--num-replicas", "4", "--ipus-per-replica", "2", "--emulate-sdk=yes"),
        *("python3", "-c", POPART),
        timeout=200,
    )

    # Each instance has the IPUs of two replicas.
    assert output == "4 True 0.3111111\n" * 2


@pytest.mark.timeout(900)
def test_instances_on_several_hosts_may_save_to_one_path_and_to_their_own(
    bed: Bed,
) -> None:
    variables = ["-x TF_CPP_MIN_LOG_LEVEL=3", "-x PYTHONDONTWRITEBYTECODE=1"]

    output = bed.front.output(
        *("poprun", "--mpirun", mpirun_of("openmpi5"), "--host", "h0,h1", "-n", "2"),
        *("--offline-mode=yes", "--mpi-global-args", " ".join(variables)),
        *("python3", "-c", SAVING),
        timeout=600,
    )

    files = "checkpoint.data-00000-of-00001 checkpoint.index exported model.keras"
    assert output == f"True True {files}\n" * 4


@pytest.mark.parametrize("hosts", ["h0,h1", "h0,h1,h2"])
def test_a_training_gives_the_same_bits_on_one_host_and_on_several(
    bed: Bed, hosts: str
) -> None:
    job = ["--num-instances", "6", "--num-replicas", "6", "--offline-mode=yes"]
    program = ["python3", f"{ROOT}/examples/train.py"]
    environ = {"POPDIST_REPRODUCIBLE": "1"}

    one = bed.front.output("poprun", *job, *program, env=environ, timeout=200)
    several = bed.front.output(
        *("poprun", "--host", hosts, *job, *program), env=environ, timeout=200
    )

    assert sorted(several.splitlines()) == sorted(one.splitlines())
