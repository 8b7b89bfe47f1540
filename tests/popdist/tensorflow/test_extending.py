"""The functions of TensorFlow and Keras that strategies extend."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.framework_names import FrameworkNames
from popdist.tensorflow import PopDistStrategy, extending
from popdist.tensorflow.extending import extend
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


def test_a_renamed_method_is_an_error_at_import_that_names_versions() -> None:
    (said,) = run(
        "from tensorflow.python.distribute.mirrored_strategy import MirroredExtended\n"
        "MirroredExtended._renamed = MirroredExtended._reduce_to\n"
        "del MirroredExtended._reduce_to\n"
        "try: from popdist.tensorflow import PopDistStrategy\n"
        "except ImportError as error: print(error)"
    )

    assert said == (
        "popdist needs tensorflow.python.distribute.mirrored_strategy:MirroredExtended."
        f"_reduce_to, which tensorflow {tf.__version__} does not have. Without it, "
        "instances train apart without a warning. Install tensorflow 2.21, with which "
        "popdist was tried."
    )


def test_a_function_that_no_table_names_is_not_extended() -> None:
    with pytest.raises(LookupError, match="Add it there"):
        extend("squeeze", print)


def test_a_path_that_several_modules_of_a_package_have_is_not_extended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {f"framework.{module}:conv": "it fails" for module in ("a", "b")}
    table = FrameworkNames("framework", "1.0", names)
    monkeypatch.setitem(extending._TABLES, "framework", table)

    with pytest.raises(LookupError, match=r"framework\.a:conv, framework\.b:conv"):
        extend("conv", print)


def test_a_module_that_is_imported_later_and_lacks_a_name_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "later_framework.functions:renamed"
    table = FrameworkNames("later_framework", "1.0", {name: "it fails"})
    monkeypatch.setitem(extending._TABLES, "later_framework", table)
    (tmp_path / "later_framework").mkdir()
    (tmp_path / "later_framework" / "__init__.py").write_text('__version__ = "2.0"')
    (tmp_path / "later_framework" / "functions.py").write_text("new_name = print")
    monkeypatch.syspath_prepend(tmp_path)

    extend("renamed", print)
    import_module("later_framework")
    for _ in range(2):
        with pytest.raises(ImportError) as caught:
            import_module("later_framework.functions")

        assert str(caught.value) == (
            f"popdist needs {name}, which later_framework 2.0 does not have. Without "
            "it, it fails. Install later_framework 1.0, with which popdist was tried."
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

    # The first name of the table.
    assert (
        said
        == [
            "tf_keras.src.callbacks popdist needs tf_keras.src.callbacks:CallbackList."
            "on_epoch_end, which tf_keras 9.0 does not have. Without it, fit does not "
            "report models that instances train apart. Install tf_keras 2.21, with "
            "which popdist was tried."
        ]
        * 2
    )
