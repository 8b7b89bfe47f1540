"""Models of Keras that each instance of a job trains alone."""

import subprocess
import sys

import pytest

from tests.jobs import environments

PROGRAM = """
import sys
import numpy as np
import {keras} as keras
import popdist.sdk
popdist.sdk.install()
import popdist.tensorflow
import tensorflow as tf

if sys.argv[1] == "IPUStrategy":
    from tensorflow.python import ipu

    strategy = ipu.ipu_strategy.IPUStrategy()
else:
    strategy = tf.distribute.get_strategy()
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((4, 2), "float32")
if sys.argv[1] == "predict":
    model.predict(x, verbose=0)
else:
    with strategy.scope():
        model.fit(x, x[:, :1], verbose=0)
"""


@pytest.mark.parametrize(
    ("keras", "call"),
    [
        ("keras", "fit"),
        ("tf_keras", "fit"),
        ("keras", "predict"),
        # It says so itself when it is made.
        ("keras", "IPUStrategy"),
    ],
)
def test_a_fit_that_reduces_nothing_is_warned_of_at_the_end(
    keras: str, call: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keras=keras), call],
        env=environments([1, 1])[0],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=250,
    )

    lines = [line for line in ran.stderr.splitlines() if "trained separately" in line]
    assert lines == (
        [
            "The 2 instances have trained separately: they have reduced nothing, so "
            "each has a different model. Make the model within `with "
            "popdist.tensorflow.PopDistStrategy().scope():`, or compile it with "
            "horovod's DistributedOptimizer."
        ]
        if call == "fit"
        else []
    )
