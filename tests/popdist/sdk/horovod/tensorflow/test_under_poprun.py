"""A program for Horovod and tf_keras as users have it, under poprun."""

import json
from pathlib import Path

import pytest
from conftest import Poprun

PROGRAM = """
import json
import sys
import warnings

import numpy as np
import tensorflow as tf

import horovod.tensorflow.keras as hvd

warnings.simplefilter("error", UserWarning)
hvd.init()
tf.random.set_seed(hvd.rank())
random = np.random.default_rng(hvd.rank())
x = random.uniform(-2, 2, (64, 1)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, np.sin(x))).repeat().batch(8)
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(16, "tanh"), tf.keras.layers.Dense(1)]
)
rate = 0.05 * hvd.size()
optimizer = hvd.DistributedOptimizer(
    tf.keras.optimizers.legacy.SGD(rate, momentum=0.5)
)
# Keras 2 takes it.
model.compile(optimizer, "mse", experimental_run_tf_function=False)
momenta = []


class Momenta(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        momenta.append(float(tf.keras.backend.get_value(optimizer.momentum)))


history = model.fit(
    dataset,
    steps_per_epoch=8,
    epochs=4,
    verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
        Momenta(),
    ],
)
report = {
    "history": history.history,
    "keras": type(model).__module__.partition(".")[0],
    "weights": [weight.tolist() for weight in model.get_weights()],
    "momenta": [round(momentum, 4) for momentum in momenta],
}
with open(f"report.{hvd.rank()}", "w") as file:
    json.dump(report, file)
if hvd.rank() == 0:
    losses = history.history["loss"]
    print("improved", losses[-1] < losses[0] / 2)
"""


@pytest.mark.mpi
def test_a_program_for_tf_keras_trains_as_it_does_with_horovod(
    poprun: Poprun, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    ran = poprun(
        *("--num-instances", "2", "--num-replicas", "2"),
        *("--mpirun", "local", "python", "train.py"),
        environ={"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=200,
    )

    assert (ran.code, ran.stdout) == (0, "improved True\n"), ran.stderr
    first, second = (
        json.loads((tmp_path / f"report.{rank}").read_text()) for rank in range(2)
    )
    assert first == second
    assert first["keras"] == "tf_keras"
    # By how much the learning rate has changed: from 0.1 to 0.053125, and then by 1/16
    # of 0.05 with each batch.
    assert first["momenta"][:4] == [0.2656, 0.5294, 0.5278, 0.5263]
    assert first["momenta"][16:] == [0.5] * 16
    assert [round(rate, 5) for rate in first["history"]["lr"]] == [0.075, 0.1, 0.1, 0.1]
