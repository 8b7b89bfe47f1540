"""The functions of TensorFlow and Keras that strategies extend."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import keras_of, on_all


@pytest.mark.filterwarnings("ignore")
def test_a_plain_strategy_after_one_of_a_subclass_trains_with_incomplete_steps() -> (
    None
):
    class Subclass(PopDistStrategy):
        pass

    def program(rank: int) -> Any:
        keras = keras_of(3)
        Subclass()
        with PopDistStrategy().scope():
            normalized = keras.layers.BatchNormalization()
            model = keras.Sequential(
                [keras.layers.Input((1,)), normalized, keras.layers.Dense(1)]
            )
            model.compile("sgd", "mse")
        samples = np.ones((5, 1), np.float32)
        model.fit(samples, samples, batch_size=2, verbose=0)
        weights = model.get_weights()
        return len(weights), [bool(np.isfinite(weight).all()) for weight in weights]

    assert on_all((2,), program) == [(6, [True] * 6)]


# Takes each function that popdist extends out of its package, and extends it again.
WALK = """
import importlib
import tensorflow
import tf_keras
import popdist.sdk
popdist.sdk.install()
from popdist.tensorflow.strategy import extending

extend, targets = extending.extend, []
extending.extend = lambda *target: (targets.append(target), extend(*target))
import popdist.tensorflow.strategy.popdist_strategy
import horovod._keras.optimizer
for target in targets:
    module, class_name, name, _ = target
    owner = importlib.import_module(module)
    owner = getattr(owner, class_name) if class_name else owner
    function = vars(owner)[name]
    delattr(owner, name)
    try:
        extend(*target)
        print("extended:", *target)
    except ImportError as error:
        print(error)
    setattr(owner, name, function)
"""


def run(program: str) -> list[str]:
    """Return the lines that a Python prints which runs this program."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_each_missing_function_is_an_error_at_import_that_names_versions() -> None:
    said = run(WALK)

    places = [re.match(r"popdist extends (\S+), which (\w+) \S+ does", s) for s in said]
    assert all(places), said
    packages = {place[2] for place in places if place}
    assert packages == {"keras", "tensorflow", "tf_keras"}
    assert said[2] == (
        "popdist extends tensorflow.python.eager.polymorphic_function."
        "concrete_function.ConcreteFunction._call_flat, which tensorflow "
        f"{tf.__version__} does not have. Install tensorflow 2.21, with which popdist "
        "was tried."
    )


def test_a_keras_that_is_imported_later_is_extended_then(tmp_path: Path) -> None:
    (tmp_path / "tf_keras").mkdir()
    (tmp_path / "tf_keras" / "__init__.py").write_text('__version__ = "9.0"')

    said = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from popdist.tensorflow import PopDistStrategy\n"
        "for _ in range(2):\n"
        "    try: import tf_keras\n"
        "    except ImportError as error: print(error.name, error)"
    )

    # Of whichever function is the first one that it lacks.
    error, again = said
    assert again == error
    assert re.fullmatch(
        r"(tf_keras\.src\.\S+) popdist extends \1\.\S+, which tf_keras 9\.0 does not "
        r"have\. Install tf_keras 2\.21, with which popdist was tried\.",
        error,
    )
