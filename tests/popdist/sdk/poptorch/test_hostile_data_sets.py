"""Data sets and programs that a process which loads ahead must expect."""

import multiprocessing.connection
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest
import torch
from torch.multiprocessing.reductions import reduce_storage
from torch.utils.data import IterableDataset

import poptorch
from poptorch import AsynchronousDataAccessor, SharingStrategy
from poptorch.data.helper_processes import preload_torch
from tests.meeting import wait_until

pytestmark = pytest.mark.filterwarnings(
    # A fork of a process with threads.
    "ignore:.*multi-threaded.*:DeprecationWarning"
)


class Refilled(IterableDataset[Any]):
    """Yields one tensor again and again, with other numbers in it."""

    def __init__(self, view_of: int = 0) -> None:
        self.buffer = torch.zeros(3 + view_of)[:3]

    def __iter__(self) -> Iterator[Any]:
        for number in range(6):
            self.buffer.fill_(number)
            yield self.buffer


class RefilledNested(Refilled):
    def __iter__(self) -> Iterator[Any]:
        for buffer in super().__iter__():
            yield {"x": (buffer,)}


class RefilledParameter(Refilled):
    def __init__(self) -> None:
        self.buffer = torch.nn.Parameter(torch.zeros(3), requires_grad=False)


class RefilledArray(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        array = numpy.zeros(3)
        tensor = torch.from_numpy(array)
        for number in range(6):
            array[:] = number
            yield tensor


def numbers_in(batches: Any) -> list[list[float]]:
    return [
        (batch["x"][0] if isinstance(batch, dict) else batch).tolist()
        for batch in batches
    ]


@pytest.mark.parametrize(
    "strategy", [SharingStrategy.Fork, SharingStrategy.ForkServer], ids=str
)
@pytest.mark.parametrize(
    "data",
    [Refilled(), Refilled(100), RefilledNested(), RefilledParameter(), RefilledArray()],
    ids=["whole", "view", "nested", "parameter", "array"],
)
def test_a_refilled_buffer_does_not_change_batches_that_were_loaded(
    data: Any, strategy: SharingStrategy
) -> None:
    # They are kept: the program gets the first when the last has been loaded.
    accessor = AsynchronousDataAccessor(
        data, buffer_size=6, early_preload=True, sharing_strategy=strategy
    )
    loaded = list(accessor)
    accessor.terminate()

    assert numbers_in(loaded) == [[number] * 3 for number in range(6)]


def test_a_loader_without_a_batch_size_loads_a_refilled_buffer_as_sync_does() -> None:
    loader = poptorch.DataLoader(
        poptorch.Options(),
        Refilled(),
        batch_size=None,
        mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": SharingStrategy.Fork},
    )
    loaded = list(loader)
    loader.terminate()

    assert numbers_in(loaded) == [[number] * 3 for number in range(6)]


def test_a_program_that_changes_a_batch_does_not_change_the_data_set() -> None:
    # The data set is a tensor: its rows are views of it.
    accessor = AsynchronousDataAccessor(
        torch.ones(4, 3), sharing_strategy=SharingStrategy.Fork
    )
    for _ in range(2):
        for row in accessor:
            assert row.tolist() == [1, 1, 1]
            assert row.untyped_storage().nbytes() == row.nbytes
            row.mul_(2)
    accessor.terminate()


class WithNumWorkers:
    num_workers = 2

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(3))


def test_an_attribute_num_workers_does_not_make_a_data_set_a_loader() -> None:
    accessor = AsynchronousDataAccessor(
        WithNumWorkers(), sharing_strategy=SharingStrategy.Fork
    )
    assert [int(number) for number in accessor] == [0, 1, 2]
    accessor.terminate()


class Unreadable:
    """A data set whose unpickling raises an error."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return exec, (f"raise {self.error}('no database')",)


@pytest.mark.parametrize("error", ["ValueError", "ConnectionRefusedError", "EOFError"])
def test_an_error_of_unpickling_is_an_error_of_the_first_batch(
    error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(poptorch.Error, match=f"raised {error}: no database"):
        AsynchronousDataAccessor(Unreadable(error))

    assert "Traceback" in capsys.readouterr().err


class LargeArrays:
    """Yields arrays that no pipe has room for, and creates a file for each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __iter__(self) -> Iterator[Any]:
        for number in range(8):
            (self.directory / str(number)).touch()
            yield numpy.full(250_000, number, dtype=numpy.float32)


def test_arrays_larger_than_a_pipe_are_loaded_ahead(tmp_path: Path) -> None:
    accessor = AsynchronousDataAccessor(
        LargeArrays(tmp_path),
        buffer_size=4,
        early_preload=True,
        sharing_strategy=SharingStrategy.Fork,
    )

    wait_until(lambda: len(list(tmp_path.iterdir())) == 5)
    for _ in range(2):
        assert [array.mean() for array in accessor] == list(range(8))
    accessor.terminate()


FORKING_PROGRAM = """
import multiprocessing, os, signal, sys
import popdist.sdk
popdist.sdk.install()
import poptorch, torch

if __name__ == "__main__":
    accessor = poptorch.AsynchronousDataAccessor(
        torch.arange(1000), sharing_strategy=poptorch.SharingStrategy[sys.argv[1]]
    )
    next(iter(accessor))
    (loading,) = multiprocessing.active_children()
    if forked := os.fork():
        print(loading.pid, forked, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
"""


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("strategy", ["Fork", "ForkServer"])
def test_the_loading_process_ends_with_a_program_whose_fork_lives_on(
    strategy: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(FORKING_PROGRAM)

    with subprocess.Popen(
        [sys.executable, program, strategy], stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        loading, forked = map(int, started.stdout.readline().split())
        try:
            assert started.wait() == -signal.SIGKILL
            wait_until(lambda: not is_running(loading))
            assert is_running(forked)
        finally:
            os.kill(forked, signal.SIGKILL)


def test_ctrl_c_in_the_middle_of_a_batch_ends_the_loading_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays = [numpy.full(1_000_000, number) for number in range(9)]
    accessor = AsynchronousDataAccessor(arrays, sharing_strategy=SharingStrategy.Fork)
    assert next(accessor)[0] == 0

    reads = 0

    def read_part(descriptor: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 4:
            raise KeyboardInterrupt
        return os.read(descriptor, size)

    connection: Any = multiprocessing.connection.Connection
    receive: Callable[..., Any] = connection._recv
    with monkeypatch.context() as patch:
        patch.setattr(
            connection, "_recv", lambda self, size: receive(self, size, read_part)
        )
        with pytest.raises(KeyboardInterrupt):
            next(accessor)

    with pytest.raises(poptorch.Error, match="loading process was terminated"):
        next(accessor)


def test_ctrl_c_while_a_batch_is_waited_for_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    accessor = AsynchronousDataAccessor(
        torch.arange(4), sharing_strategy=SharingStrategy.Fork
    )
    assert int(next(accessor)) == 0
    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.connection.Connection, "poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(accessor)

    assert [int(next(accessor)) for _ in range(3)] == [1, 2, 3]
    accessor.terminate()


@pytest.mark.parametrize(
    ("chosen", "imported"), [(["__main__"], ["torch"]), (["numpy"], ["numpy"])]
)
def test_the_forkserver_imports_what_the_program_has_chosen(
    chosen: list[str], imported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = forkserver
    monkeypatch.setattr(server._forkserver, "_preload_modules", chosen)

    preload_torch()

    assert server._forkserver._preload_modules == imported


def test_the_programs_own_pickling_of_tensors_is_torchs() -> None:
    pickler: Any = ForkingPickler
    assert pickler._extra_reducers[torch.UntypedStorage] is reduce_storage
