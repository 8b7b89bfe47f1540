"""Files that all instances save at once, which stay whole."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist import collectives
from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.strategy.saving import save_file, save_folder
from tests.popdist.tensorflow.instances import TIMEOUT, keras_of, on_all

pytestmark = TIMEOUT


def writer(text: str, error: Exception | None = None) -> Callable[..., None]:
    def save(model: object, path: str, overwrite: bool = True) -> None:
        Path(path).write_text(text)
        if error is not None:
            raise error

    return save


def test_a_file_is_replaced_by_a_complete_one(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    save_file(1, writer("first"), None, path)
    with pytest.raises(OSError, match="no space"):
        save_file(1, writer("sec", OSError("no space")), None, str(path))

    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["model.keras"]


def test_a_file_that_must_not_be_replaced_is_left_to_keras(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    cases: list[tuple[Any, Any]] = [((False,), {}), ((), {"overwrite": False})]
    for arguments, named in cases:
        save = writer("half", OSError("no space"))
        with pytest.raises(OSError, match="no space"):
            save_file(1, save, None, path, *arguments, **named)
        assert path.read_text() == "half"


def test_folders_are_saved_one_after_the_other(tmp_path: Path) -> None:
    events: list[str] = []

    def save(owner: str, prefix: Path | None = None, **_: Path) -> None:
        events.append(f"{owner} begins")
        time.sleep(0.2)
        events.append(f"{owner} ends")

    prefix = tmp_path / "folder" / "checkpoint"
    threads = [
        Thread(target=save_folder, args=(save, "a", prefix)),
        Thread(target=save_folder, args=(save, "b"), kwargs={"file_prefix": prefix}),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [event[2:] for event in events] == ["begins", "ends"] * 2
    assert events[0][0] == events[1][0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_all_instances_may_save_to_one_path(tmp_path: Path, keras_version: int) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        strategy = PopDistStrategy()
        with strategy.scope():
            model = keras.Sequential(
                [keras.layers.Input((64,)), keras.layers.Dense(64)]
            )
        checkpoint = tf.train.Checkpoint(model=model)
        collectives.barrier()
        for _ in range(3):
            model.save(tmp_path / "model.keras")
            model.save_weights(tmp_path / "model.weights.h5")
            checkpoint.write(f"{tmp_path}/checkpoint")
        collectives.barrier()
        with strategy.scope():
            loaded = keras.models.load_model(tmp_path / "model.keras")
        loaded.load_weights(tmp_path / "model.weights.h5")
        checkpoint.read(f"{tmp_path}/checkpoint").assert_existing_objects_matched()
        pairs = zip(loaded.get_weights(), model.get_weights(), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    assert on_all(2, program) == [True, True]
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint.data-00000-of-00001",
        "checkpoint.index",
        "model.keras",
        "model.weights.h5",
    ]
