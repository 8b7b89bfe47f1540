"""Mistakes with models of Keras and strategies: each has a sentence."""

import logging
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import keras_of, on_all

SCOPE = "Make the model and the optimizer within `with strategy.scope():`."


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_what_was_made_outside_the_scope_is_named_with_the_way_out(
    keras_version: int,
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        strategy = PopDistStrategy()
        samples = np.ones((4, 1), np.float32)

        def model_of(optimizer: Any) -> Any:
            model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
            model.compile(optimizer, "mse")
            return model

        outside = model_of(keras.optimizers.SGD())
        with strategy.scope(), pytest.raises(ValueError, match="scope") as model:
            outside.fit(samples, samples, verbose=0)
        optimizer = keras.optimizers.SGD()
        errors = [str(model.value)]
        if keras_version == 3:
            with strategy.scope():
                inside = model_of(optimizer)
            with pytest.raises(ValueError, match="scope") as made_outside:
                inside.fit(samples, samples, verbose=0)
            errors.append(str(made_outside.value))
            compiled = keras.Sequential(outside.layers)
            with strategy.scope():
                compiled.compile("sgd", "mse")
            with pytest.raises(ValueError, match="scope") as model:
                compiled.fit(samples, samples, verbose=0)
            errors.append(str(model.value))
        with strategy.scope():
            shared = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        around = keras.Sequential([shared, keras.layers.Dense(1)])
        around.compile(optimizer if keras_version == 2 else "sgd", "mse")
        with pytest.raises(ValueError, match="scope") as model:
            around.fit(samples, samples, verbose=0)
        return [*errors, str(model.value)]

    model = (
        "The model was not made in the scope of the PopDistStrategy in which it is "
        f"compiled or trained, so the replicas do not share it. {SCOPE}"
    )
    optimizer = (
        "The optimizer was not made in the scope of the PopDistStrategy of the model. "
        f"{SCOPE}"
    )
    errors = [model, model] if keras_version == 2 else [model, optimizer, model, model]
    assert on_all(2, program) == [errors] * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("keras_version", "rows"), [(2, (1, 1)), (3, (1,)), (3, (1, 1))], ids=str
)
def test_a_program_that_never_enters_the_scope_is_warned_when_it_trains(
    keras_version: int, rows: tuple[int, ...]
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        strategy = PopDistStrategy()
        samples = np.ones((4, 1), np.float32)
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("popdist.tensorflow").addHandler(handler)

        def model(name: str) -> Any:
            layers = [keras.layers.Input((1,)), keras.layers.Dense(1)]
            made = keras.Sequential(layers, name=name)
            made.compile("sgd", "mse")
            return made

        helper = model("helper")
        helper.evaluate(samples, samples, verbose=0)
        helper.predict(samples, verbose=0)
        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            other = model("other")
        other.fit(samples, samples, verbose=0)
        nothing_yet = list(said)
        model("outside").fit(samples, samples, verbose=0)
        # The instances train something together, and this beside it.
        with strategy.scope():
            tf.Variable(1.0)
        model("beside").fit(samples, samples, verbose=0)
        return nothing_yet, said

    warning = (
        "The model outside was not created in the scope of the PopDistStrategy, so "
        f"each instance trains a separate model. {SCOPE}"
    )
    assert on_all(rows, program) == [([], [warning] * (len(rows) > 1))] * len(rows)


@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_of_keras_3_that_accumulates_is_refused() -> None:
    def program(rank: int) -> str:
        keras = keras_of(3)
        with PopDistStrategy().scope():
            model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
        with pytest.raises(NotImplementedError) as refused:
            model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
        return str(refused.value)

    assert on_all(1, program) == [
        "The optimizer's gradient_accumulation_steps is 2, which TensorFlow cannot do "
        "under strategies. Leave it out, import tensorflow.python.ipu, and call "
        "model.set_gradient_accumulation_options(2)."
    ]


def test_tf_keras_alone_trains_under_it() -> None:
    program = """
import numpy as np
import tensorflow as tf
from popdist.tensorflow import PopDistStrategy

with PopDistStrategy().scope():
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), layer])
    model.compile(tf.keras.optimizers.legacy.SGD(0.25), "mse")
model.fit(np.ones((1, 1)), np.zeros((1, 1)), verbose=0)
print(tf.keras.Model.__module__.split(".")[0], float(model.get_weights()[0].item()))
"""

    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
    )

    # The gradient of the square of 1 is 2.
    assert (ran.returncode, ran.stdout) == (0, "tf_keras 0.5\n"), ran.stderr
