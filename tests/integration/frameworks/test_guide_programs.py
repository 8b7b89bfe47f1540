"""What the vendor's guide lets its readers try, as its listings do it."""

import os
import subprocess
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import Poprun
from python_environments import make_environment
from vipu_servers import serving

# As listing 4.1, and who takes part.
VALIDATE_TENSORFLOW = """
import popdist
import popdist.tensorflow
from tensorflow.python.ipu import horovod as hvd

hvd.init()
print(hvd.size(), hvd.rank(), popdist.getNumLocalReplicas())
"""
# TensorFlow says on stderr what the CPU can do.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}

# As listing 4.2: what must be importable, in its order.
VALIDATE = """
import torch
import poptorch
import popdist
import horovod.torch as hvd

hvd.init()
"""

# As listing 4.3, with the arguments that it leaves to its readers.
EXAMPLE = """
import argparse
import sys

import torch
import poptorch
import popdist
import popdist.poptorch
import horovod.torch as hvd


def init_popdist(args):
    hvd.init()
    args.use_popdist = True
    if popdist.getNumTotalReplicas() != args.replicas:
        print("poprun overrides the replicas:", popdist.getNumTotalReplicas())
    args.replicas = int(popdist.getNumLocalReplicas())
    args.popdist_rank = popdist.getInstanceIndex()
    args.popdist_size = popdist.getNumInstances()


def create_model(args):
    if args.use_popdist:
        return popdist.poptorch.Options()
    return poptorch.Options()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=1)
    args = parser.parse_args()
    if popdist.isPopdistEnvSet():
        init_popdist(args)
    else:
        args.use_popdist = False
    options = create_model(args)
    print(type(options).__module__, vars(args), options.replication_factor)
"""


@pytest.mark.mpi
def test_instances_validate_horovod_of_tensorflow(poprun: Poprun) -> None:
    script = poprun.script("validate.py", VALIDATE_TENSORFLOW)

    ran = poprun(
        *("--num-instances", "2", "--num-replicas", "4", "python", script),
        environ=QUIET,
        timeout=200,
    )

    assert ran.code == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["2 0 2", "2 1 2"]


@pytest.mark.parametrize("enabled", [False, True])
def test_plain_python_validates_horovod_of_tensorflow(
    tmp_path: Path, enabled: bool
) -> None:
    python, _ = make_environment(tmp_path / "environment", popdist=True)
    program = tmp_path / "validate.py"
    program.write_text(VALIDATE_TENSORFLOW)
    run = partial(subprocess.run, capture_output=True, text=True, timeout=200)
    stand_ins = [python, "-m", "popdist.sdk"]

    if enabled:
        run([*stand_ins, "enable"], check=True)
    command = [python, program] if enabled else [*stand_ins, program]
    ran = run(command, env={**os.environ, **QUIET})

    assert (ran.returncode, ran.stdout) == (0, "1 0 1\n"), ran.stderr


def test_plain_python_validates_horovod_in_an_enabled_environment(
    tmp_path: Path,
) -> None:
    python, _ = make_environment(tmp_path / "environment", popdist=True)
    program = tmp_path / "validate.py"
    program.write_text(VALIDATE + "print(hvd.size(), hvd.rank())\n")
    command = [python, "-m", "popdist.sdk", "enable"]

    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ran = subprocess.run([python, program], capture_output=True, text=True)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1 0\n", "")


@pytest.mark.mpi
def test_the_example_of_the_guide_runs_on_a_partition_of_a_server(
    poprun: Poprun, tmp_path: Path
) -> None:
    script = poprun.script("main.py", EXAMPLE)
    with serving(tmp_path / "server.db") as server:
        ran = poprun(
            *("--vipu-partition=MyPartition", "--vipu-server-host=127.0.0.1"),
            f"--vipu-server-port={server.port}",
            *("--num-replicas=4", "--num-instances=1", "--numa-aware=yes", "-v"),
            *("python", script),
        )

    assert ran.code == 0, ran.stderr
    assert ran.stdout == dedent("""\
        poprun overrides the replicas: 4
        popdist.poptorch {'replicas': 4, 'use_popdist': True, 'popdist_rank': 0, \
'popdist_size': 1} 4
        """)


def test_without_poprun_the_example_is_a_plain_program(tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text(EXAMPLE)
    python, _ = make_environment(tmp_path / "environment", popdist=True)
    command = [python, "-m", "popdist.sdk", "main.py", "--replicas=2"]

    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    assert ran.stdout.endswith(" {'replicas': 2, 'use_popdist': False} 1\n"), ran.stderr
