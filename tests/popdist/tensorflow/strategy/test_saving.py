"""Files that all instances save at once, which stay whole."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist import collectives, session
from popdist.job import Place
from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.strategy import saving
from popdist.tensorflow.strategy.saving import save_folder, save_model
from tests.meeting import wait_until
from tests.popdist.engine.members import run
from tests.popdist.tensorflow.instances import (
    keras_of,
    on_all,
    one_weight_model,
)


@pytest.fixture(autouse=True)
def _among_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be one of two instances; an instance alone locks nothing."""
    job = replace(session.STATE.job, place=Place(size=2, local_size=2))
    monkeypatch.setitem(vars(session.STATE), "job", job)


def writer(text: str, error: Exception | None = None) -> Callable[..., None]:
    def save(model: object, path: str, overwrite: bool = True) -> None:
        Path(path).write_text(text)
        if error is not None:
            raise error

    return save


def die_in_saving(path: Path) -> None:
    """Save with an instance that is killed meanwhile."""

    def save(_: object, path: str | Path, overwrite: bool) -> None:
        if Path(path).suffix:
            Path(path).write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    ended = run(1, lambda _: save_model(save, None, path))

    assert [end.code for end in ended] == [-signal.SIGKILL]


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_file_is_replaced_by_a_complete_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save_model(writer("first"), None, path)
    with pytest.raises(OSError, match="no space"):
        save_model(writer("sec", OSError("no space")), None, str(path))

    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == [name]


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / f"{'m' * 249}.keras"

    save_model(writer("whole"), None, path)

    assert path.read_text() == "whole"


def test_a_file_that_must_not_be_replaced_is_left_to_keras(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    cases: list[tuple[Any, Any]] = [((False,), {}), ((), {"overwrite": False})]
    for arguments, named in cases:
        save = writer("half", OSError("no space"))
        with pytest.raises(OSError, match="no space"):
            save_model(save, None, path, *arguments, **named)
        assert path.read_text() == "half"


@pytest.mark.parametrize("name", ["model.keras", "model"])
def test_a_save_neither_waits_for_an_instance_that_was_killed_nor_keeps_its_files(
    tmp_path: Path, name: str
) -> None:
    die_in_saving(tmp_path / name)
    assert 1 <= len(os.listdir(tmp_path)) <= 2

    save_model(writer("whole"), None, tmp_path / name)

    assert (tmp_path / name).read_text() == "whole"
    assert os.listdir(tmp_path) == [name]


def test_folders_are_saved_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    prefix = tmp_path / "folder" / "checkpoint"
    waited = Event()
    monkeypatch.setattr(saving, "sleep", lambda _: waited.set())

    def save(owner: str, prefix: Path | None = None, **_: Path) -> None:
        events.append(f"{owner} begins")
        # Until the other one waits.
        waited.wait(60)
        events.append(f"{owner} ends")

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
    assert os.listdir(tmp_path / "folder") == []


def test_a_save_within_another_one_to_the_same_path_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    def save(model: object, path: Path, overwrite: bool) -> str:
        inner: str = save_folder(lambda *_: "saved", None, path)
        return inner

    assert save_model(save, None, tmp_path / "weights") == "saved"


def test_an_instance_that_does_not_come_to_an_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    lock = saving._locked(f"{saving._name_beside(path)}.lock", "")
    now = iter(range(0, 10_000, 100))
    monkeypatch.setattr(saving, "monotonic", lambda: next(now))
    monkeypatch.setattr(saving, "sleep", lambda _: None)

    with pytest.raises(TimeoutError) as error:
        save_folder(lambda *_: None, None, path)

    os.close(lock)
    (name,) = os.listdir(tmp_path)
    assert str(error.value) == (
        f"Another process has not ended saving to {path} in "
        f"{session.STATE.settings.timeout:g} seconds: it has locked {tmp_path / name}. "
        "If it needs longer, set POPDIST_TIMEOUT to more seconds."
    )


def test_each_instance_that_saves_may_take_as_long_as_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "exported"
    name = f"{saving._name_beside(path)}.lock"
    locks = [saving._locked(name, "")]
    now = 0.0

    def sleep(_: float) -> None:
        nonlocal now
        now += session.STATE.settings.timeout * 0.6
        os.unlink(name)
        os.close(locks.pop())
        if now < session.STATE.settings.timeout * 1.5:
            locks.append(saving._locked(name, ""))

    monkeypatch.setattr(saving, "monotonic", lambda: now)
    monkeypatch.setattr(saving, "sleep", sleep)

    assert save_folder(lambda *_: "saved", None, path) == "saved"
    assert locks == []


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system have no locks."""

    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(saving.fcntl, "flock", flock)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_an_instance_saves_a_folder_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert save_folder(lambda *_: "saved", None, tmp_path / "model") == "saved"
    assert caplog.messages == [
        f"Files that instances save to {tmp_path / 'model'} may be mixed, because the "
        "file system has no locks. Let instance 0 alone save."
    ]
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("no_locks")
def test_without_locks_instances_that_save_one_file_at_once_keep_it_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.keras"

    def save(_: object, name: str, __: bool) -> None:
        Path(name).write_text("first")
        # The other instance saves before this one has ended.
        save_model(writer("second"), None, path)
        assert path.read_text() == "second"
        assert Path(name).read_text() == "first"

    # In a separate context, since a save within another one does not lock.
    context = copy_context()
    save_model(lambda *each: context.run(save, *each), None, path)

    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["model.keras"]
    assert caplog.messages == []


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
        manager = tf.train.CheckpointManager(checkpoint, tmp_path / "kept", 2)
        collectives.barrier()
        for _ in range(3):
            model.save(tmp_path / "model.keras")
            if keras_version == 2:
                model.save(tmp_path / "folder")
            model.export(tmp_path / "exported")
            model.save_weights(tmp_path / "model.weights.h5")
            checkpoint.write(f"{tmp_path}/checkpoint")
            manager.save()
        collectives.barrier()
        with strategy.scope():
            loaded = keras.models.load_model(tmp_path / "model.keras")
        found = [loaded.get_weights()]
        loaded.load_weights(tmp_path / "model.weights.h5")
        found.append(loaded.get_weights())
        for name in folders:
            restored = tf.saved_model.load(f"{tmp_path}/{name}")
            found.append([weight.numpy() for weight in restored.variables])
        for prefix in (f"{tmp_path}/checkpoint", manager.latest_checkpoint):
            checkpoint.read(prefix).assert_existing_objects_matched()
        return [np.array_equal(each[0], model.get_weights()[0]) for each in found]

    folders = ["exported", "folder"][: 4 - keras_version]
    assert on_all(2, program) == [[True] * (2 + len(folders))] * 2
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint.data-00000-of-00001",
        "checkpoint.index",
        *folders,
        "kept",
        "model.keras",
        "model.weights.h5",
    ]
    assert sorted(os.listdir(tmp_path / "kept")) == [
        "checkpoint",
        "ckpt-2.data-00000-of-00001",
        "ckpt-2.index",
        "ckpt-3.data-00000-of-00001",
        "ckpt-3.index",
    ]


def test_a_backup_is_read_while_no_other_instance_writes_it(tmp_path: Path) -> None:
    folder = tmp_path / "backup"

    def begin_to_write(**_: object) -> None:
        (folder / "training_metadata.json").touch()
        collectives.barrier()
        # Until the other one waits.
        wait_until((tmp_path / "waits").exists)

    def program(rank: int) -> Any:
        with PopDistStrategy().scope():
            model = one_weight_model(tf.keras)
        callback = tf.keras.callbacks.BackupAndRestore(folder)
        callback.set_model(model)
        if rank == 1:
            model.save_weights = begin_to_write
            callback.on_epoch_end(1)
        else:
            saving.sleep = lambda _: (tmp_path / "waits").touch()  # type: ignore[assignment]
            collectives.barrier()
            callback.on_train_begin()
        return model._initial_epoch

    assert on_all(2, program) == [2, None]


@pytest.mark.filterwarnings("ignore")
def test_a_training_goes_on_from_a_backup_on_all_instances_or_on_none(
    tmp_path: Path,
) -> None:
    def program(rank: int) -> Any:
        data = tf.data.Dataset.from_tensors(([[1.0]], [[2.0]]))

        def fit(folder: Path, last: int = 4) -> Any:
            """Train up to an epoch; return those that were made, and the weight."""
            epochs: list[int] = []

            class Interrupt(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
                def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                    if epoch == last:
                        raise InterruptedError
                    epochs.append(epoch)

            with PopDistStrategy().scope():
                model = one_weight_model(tf.keras)
                model.compile("sgd", "mse")
            backup = tf.keras.callbacks.BackupAndRestore(folder)
            try:
                model.fit(data, epochs=4, verbose=0, callbacks=[backup, Interrupt()])
            except InterruptedError:
                pass
            except ValueError as error:
                return str(error)
            return epochs, model.get_weights()[0].item()

        shared, own = tmp_path / "shared", tmp_path / f"{rank}"
        found = [fit(tmp_path / "unused"), fit(shared, 2), fit(shared), fit(own, 3)]
        collectives.barrier()
        if rank == 1:
            shutil.rmtree(own)
        return [*found, fit(own)]

    first, second = on_all(2, program)

    assert first == second
    whole, begun, resumed, _, refusal = first
    assert [whole[0], begun[0], resumed[0]] == [[0, 1, 2, 3], [0, 1], [2, 3]]
    assert resumed[1] == whole[1]
    assert refusal == (
        "The instances begin with the epochs [3, 0], from instance 0 on: not all have "
        "restored the same backup. Give all of them a BackupAndRestore with a folder "
        "that all hosts share, or copy it to each host."
    )
    assert not (tmp_path / "shared" / "latest.weights.h5").exists()


@pytest.mark.filterwarnings("ignore")
def test_an_instance_may_call_its_callbacks_alone_in_a_loop_of_the_program() -> None:
    def program(rank: int) -> Any:
        with PopDistStrategy().scope():
            model = one_weight_model(tf.keras)
        if rank == 0:
            tf.keras.callbacks.CallbackList(model=model).on_train_begin()
        # Instances that do not make the same calls learn it here.
        collectives.barrier()

    assert on_all(2, program) == [None, None]
