"""Programs for PopART under poprun, and in a process of their own."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT, Poprun

EXAMPLE = str(ROOT / "examples/popart/train.py")
# One thread for each instance: torch's would wait for each other under load.
ENVIRON = {"OMP_NUM_THREADS": "1"}

ONE_WEIGHT = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import popart
import popdist.popart
from popart_models import one_weight, options, share_of
total, first = popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()
made = options(1, 12 // total)
made.accumulationAndReplicationReductionType = popart.ReductionType.Mean
popdist.popart.configureSessionOptions(made)
share = share_of(total, first, popdist.getNumLocalReplicas())
print(format(one_weight(made, share), ".7f"))
"""


@pytest.mark.mpi
def test_instances_train_one_weight_together(poprun: Poprun) -> None:
    ran = poprun(
        *("--num-instances", "3", "--num-replicas", "12"),
        *("python", "-c", ONE_WEIGHT),
        environ=ENVIRON,
        timeout=200,
    )

    assert ran.code == 0, ran.stderr
    assert ran.stdout.split() == ["0.3111111"] * 3


@pytest.mark.mpi
@pytest.mark.timeout(600)
def test_the_example_learns_under_poprun_and_alone(poprun: Poprun) -> None:
    arguments = ("--epochs", "3")
    ran = poprun(
        *("--num-instances", "2", "--num-replicas", "4"),
        *("python", EXAMPLE, *arguments),
        environ=ENVIRON,
        timeout=200,
    )
    alone = subprocess.run(
        [sys.executable, "-m", "popdist.sdk", EXAMPLE, *arguments],
        cwd=ROOT,
        env={**os.environ, **ENVIRON},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )

    assert ran.code == 0, ran.stderr
    for text in (ran.stdout, alone.stdout):
        lines = text.splitlines()
        assert [line.partition(":")[0] for line in lines] == [
            "epoch 1",
            "epoch 2",
            "epoch 3",
        ]
        losses = [float(line.split()[3].rstrip(",")) for line in lines]
        assert losses[2] < losses[0] / 2
