"""Programs for PopDistStrategy as users have them, under poprun."""

from pathlib import Path

import pytest
from conftest import Poprun

pytestmark = pytest.mark.mpi

# It runs an operation before it imports anything of popdist's.
PROGRAM = """
import tensorflow as tf

assert tf.reduce_sum(tf.ones(3)) == 3

from popdist.tensorflow import PopDistStrategy

strategy = PopDistStrategy()
with strategy.scope():
    weight = tf.Variable(0.0)


def add_number():
    replica = tf.distribute.get_replica_context()
    own = tf.cast(replica.replica_id_in_sync_group, tf.float32)
    weight.assign_add(replica.all_reduce("SUM", own))


tf.function(lambda: strategy.run(add_number))()
print(len(tf.config.list_logical_devices("CPU")), weight.numpy())
"""


def test_operations_may_run_before_popdist_is_imported(
    poprun: Poprun, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    ran = poprun(
        *("--num-instances", "2", "--num-replicas", "4"),
        *("--mpirun", "local", "python", "program.py"),
        environ={"TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=200,
    )

    assert (ran.code, ran.stdout) == (0, "2 6.0\n" * 2), ran.stderr


def test_logical_cpus_of_the_program_are_kept(poprun: Poprun) -> None:
    program = """
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
logical = [tf.config.LogicalDeviceConfiguration()] * 3
tf.config.set_logical_device_configuration(cpu, logical)

from popdist.tensorflow import PopDistStrategy

print(len(tf.config.list_logical_devices("CPU")))
print(PopDistStrategy().extended.worker_devices)
"""

    ran = poprun(
        *("--num-replicas", "2", "--mpirun", "local", "python", "-c", program),
        environ={"TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=200,
    )

    devices = [f"/job:localhost/replica:0/task:0/device:CPU:{n}" for n in range(2)]
    assert (ran.code, ran.stdout) == (0, f"3\n{(*devices,)}\n"), ran.stderr
