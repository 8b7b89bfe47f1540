import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import poptorch
from poptorch import AsynchronousDataAccessor, SharingStrategy
from poptorch.data import accessor as accessors

pytestmark = [
    # A fork of a process with threads, and more workers than this machine has cores.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

FORK = SharingStrategy.Fork
Pair = namedtuple("Pair", ["first", "second"])


class Made(Dataset[Any]):
    """A data set out of a function."""

    def __init__(self, length: int, make: Any) -> None:
        self.length = length
        self.make = make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(pid: int | None) -> str:
    """Return the letter of a process's state in proc(5)."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]


@pytest.fixture
def find_worker() -> Callable[[], BaseProcess]:
    """Return a function that returns the only worker that the test has started."""
    before = set(multiprocessing.active_children())

    def find() -> BaseProcess:
        (worker,) = set(multiprocessing.active_children()) - before
        return worker

    return find


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker take as long to end as it may on a busy machine."""
    monkeypatch.setattr(accessors, "GRACE_S", 200.0)
    monkeypatch.setattr(accessors, "LOOK_S", 200.0)


def kill(worker: BaseProcess) -> None:
    worker.kill()
    # torch's handler of SIGCHLD may raise here.
    with suppress(RuntimeError):
        worker.join()


def is_gone(pid: int) -> bool:
    try:
        return state_of(pid) == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("strategy", list(SharingStrategy))
def test_all_strategies_load_the_same(strategy: SharingStrategy) -> None:
    options = poptorch.Options().randomSeed(5)
    options.Distributed.configureProcessId(1, 2)
    # Both have random numbers of their own, which are pickled, too.
    loader = poptorch.DataLoader(
        options,
        TensorDataset(torch.arange(21)),
        batch_size=4,
        shuffle=True,
        generator=torch.Generator(),
    )
    accessor = AsynchronousDataAccessor(loader, sharing_strategy=strategy)

    batches = [batch.tolist() for (batch,) in accessor]
    accessor.terminate()

    assert batches == [batch.tolist() for (batch,) in loader]
    assert len(accessor) == len(loader) == 2


def test_it_loads_in_another_process_and_ahead(tmp_path: Path) -> None:
    def make(index: int) -> torch.Tensor:
        (tmp_path / str(index)).touch()
        return torch.tensor([os.getpid(), index])

    accessor = AsynchronousDataAccessor(
        Made(100, make), buffer_size=4, sharing_strategy=FORK
    )
    assert len(list(tmp_path.iterdir())) == 1
    process, index = next(iter(accessor)).tolist()

    assert process != os.getpid()
    assert index == 0
    # Four are loaded ahead.
    wait_until(lambda: len(list(tmp_path.iterdir())) == 5)
    time.sleep(0.05)
    assert len(list(tmp_path.iterdir())) == 5
    next(accessor)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 6)
    accessor.terminate()


def test_early_preload_does_not_wait_for_an_iterator(tmp_path: Path) -> None:
    def make(index: int) -> torch.Tensor:
        (tmp_path / str(index)).touch()
        return torch.tensor(index)

    accessor = AsynchronousDataAccessor(
        Made(100, make), early_preload=True, sharing_strategy=FORK
    )

    wait_until(lambda: len(list(tmp_path.iterdir())) == 4)
    assert [int(value) for value in accessor] == list(range(100))
    accessor.terminate()


@pytest.mark.parametrize("indefinitely", [True, False])
def test_the_next_pass_is_loaded_ahead_unless_it_shall_not(
    indefinitely: bool, tmp_path: Path
) -> None:
    def make(index: int) -> torch.Tensor:
        with open(tmp_path / "log", "a") as log:
            log.write("x")
        return torch.tensor(index)

    accessor = AsynchronousDataAccessor(
        Made(6, make),
        buffer_size=2,
        load_indefinitely=indefinitely,
        sharing_strategy=FORK,
    )
    for _ in range(2):
        assert [int(value) for value in accessor] == list(range(6))
    # Two batches of the third pass.
    loads = 12 + 2 * indefinitely
    wait_until(lambda: (tmp_path / "log").stat().st_size >= loads)
    time.sleep(0.05)
    assert (tmp_path / "log").stat().st_size == loads

    assert [int(value) for value in accessor] == list(range(6))
    accessor.terminate()


def test_iterators_end_and_start_as_others_do() -> None:
    accessor = AsynchronousDataAccessor(
        TensorDataset(torch.arange(3)), sharing_strategy=FORK
    )

    assert int(next(accessor)[0]) == 0
    assert [int(value) for (value,) in accessor] == [0, 1, 2]
    with pytest.raises(StopIteration):
        next(accessor)
    for number, (value,) in enumerate(accessor):
        assert number == int(value)
        if number == 1:
            break
    assert [int(value) for (value,) in accessor] == [0, 1, 2]
    accessor.terminate()
    with pytest.raises(poptorch.Error, match="was terminated"):
        iter(accessor)


@pytest.mark.parametrize(
    "sample",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.tensor(3, dtype=torch.int64),
        torch.empty(0, 4),
        torch.tensor([1, 2], dtype=torch.bfloat16),
        torch.tensor([True, False, True]),
        torch.tensor([1 + 2j]),
        torch.arange(12).reshape(3, 4).T[1:],
        (torch.ones(3, dtype=torch.uint8), torch.zeros(2)),
        [torch.ones(1), [torch.zeros(2), "text", 4, None]],
        {"a": torch.ones(2), "b": {"c": torch.zeros(1, dtype=torch.float16)}},
        Pair(torch.ones(2), (torch.zeros(1),)),
        pytest.param(
            torch.eye(3).to_sparse(),
            marks=pytest.mark.filterwarnings("ignore:Sparse invariant:UserWarning"),
        ),
    ],
    ids=str,
)
def test_batches_keep_their_structure_shapes_and_types(sample: Any) -> None:
    accessor = AsynchronousDataAccessor(
        Made(2, lambda _: sample), sharing_strategy=FORK
    )

    for batch in accessor:
        assert str(batch) == str(sample)
        assert type(batch) is type(sample)
    accessor.terminate()


def test_batches_may_grow_and_shrink() -> None:
    lengths = [1, 1000, 3, 100000, 0, 7]
    accessor = AsynchronousDataAccessor(
        Made(6, lambda i: (torch.full((lengths[i],), i), torch.tensor(i))),
        buffer_size=2,
        sharing_strategy=FORK,
    )

    for _ in range(2):
        for index, (many, one) in enumerate(accessor):
            assert many.tolist() == [index] * lengths[index]
            assert int(one) == index
    accessor.terminate()


@pytest.mark.parametrize("size", [2, 4, 5, 100])
def test_items_are_made_into_batches_of_another_size(size: int) -> None:
    def make(index: int) -> Any:
        return {"x": torch.full((3,), index), "y": torch.arange(3)}

    accessor = AsynchronousDataAccessor(
        Made(7, make), rebatched_size=size, sharing_strategy=FORK
    )
    x = [batch["x"].tolist() for batch in accessor]
    y = [batch["y"].tolist() for batch in accessor]
    accessor.terminate()

    whole = [index for index in range(7) for _ in range(3)]
    assert x == [whole[i * size : (i + 1) * size] for i in range(21 // size)]
    assert [len(each) for each in y] == [size] * (21 // size)
    assert len(accessor) == 7 // size


def test_data_sets_draw_the_random_numbers_that_they_would_have_drawn() -> None:
    def make(_: int) -> torch.Tensor:
        return torch.tensor(
            [torch.rand(1).item(), random.random(), numpy.random.rand()],
            dtype=torch.float64,
        )

    torch.manual_seed(1)
    random.seed(2)
    numpy.random.seed(3)
    accessor = AsynchronousDataAccessor(Made(3, make), sharing_strategy=FORK)
    drawn = [value.tolist() for value in accessor]
    accessor.terminate()

    # It has drawn none in this process.
    assert drawn == [make(0).tolist() for _ in range(3)]


def test_loading_by_a_loaders_workers_draws_none_of_the_programs_random_numbers() -> (
    None
):
    def load(mode: poptorch.DataLoaderMode) -> list[Any]:
        torch.manual_seed(1)
        loader = poptorch.DataLoader(
            poptorch.Options(),
            Made(4, lambda index: torch.tensor([index, torch.rand(1).item()])),
            shuffle=True,
            num_workers=1,
            mode=mode,
        )
        batches = [batch.tolist() for batch in loader]
        loader.terminate()
        return batches

    ahead = load(poptorch.DataLoaderMode.Async)
    drawn = torch.rand(1).item()

    assert ahead == load(poptorch.DataLoaderMode.Sync)
    torch.manual_seed(1)
    assert drawn == torch.rand(1).item()


def test_the_program_keeps_no_copy_of_a_data_set_that_is_sent() -> None:
    # The worker sends only the first item until a pass begins.
    items = [b"", bytes(64 << 20)]
    tracemalloc.start()
    try:
        accessor = AsynchronousDataAccessor(
            items, sharing_strategy=SharingStrategy.SharedMemory
        )
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak > 64 << 20
    assert kept < 32 << 20
    assert [len(item) for item in accessor] == [0, 64 << 20]
    accessor.terminate()


class WithWorkers:
    """A data set that starts processes."""

    def __iter__(self) -> Iterator[Any]:
        pids = Made(8, lambda _: torch.tensor(os.getpid()))
        return iter(torch.utils.data.DataLoader(pids, num_workers=2))


def test_a_data_set_may_start_processes_which_end_with_the_worker() -> None:
    accessor = AsynchronousDataAccessor(WithWorkers(), sharing_strategy=FORK)
    pids = {int(pid) for pid in accessor}
    accessor.terminate()

    assert len(pids) == 2
    wait_until(lambda: all(is_gone(pid) for pid in pids))


# --- Errors.


def test_an_error_of_the_data_set_is_raised_where_its_batch_would_be() -> None:
    def make(index: int) -> torch.Tensor:
        if index == 2:
            raise KeyError("no such image")
        return torch.tensor(index)

    accessor = AsynchronousDataAccessor(Made(4, make), sharing_strategy=FORK)
    iterator = iter(accessor)

    assert [int(next(iterator)) for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(AssertionError) as error:
            next(iterator)
        assert str(error.value).startswith("An error occurred in the data fetcher:\n")
        assert "KeyError: 'no such image'" in str(error.value)
    accessor.terminate()


@pytest.mark.usefixtures("patience")
def test_the_death_of_the_loading_process_is_an_error() -> None:
    def make(index: int) -> torch.Tensor:
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)

    accessor = AsynchronousDataAccessor(Made(4, make), sharing_strategy=FORK)

    with pytest.raises(
        AssertionError,
        match="An error occurred in the data fetcher:\nRuntimeError: The process ",
    ):
        list(accessor)
    accessor.terminate()


@pytest.mark.usefixtures("patience")
def test_a_worker_killed_while_it_waits_is_an_error(
    find_worker: Callable[[], BaseProcess],
) -> None:
    accessor = AsynchronousDataAccessor(
        Made(4, lambda _: torch.tensor(os.getpid())), sharing_strategy=FORK
    )
    worker = find_worker()
    wait_until(lambda: state_of(worker.pid) == "S")
    kill(worker)

    with pytest.raises(AssertionError, match="RuntimeError: The process"):
        list(accessor)
    accessor.terminate()


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.usefixtures("patience")
def test_a_worker_killed_between_passes_is_an_error(
    batches: int, find_worker: Callable[[], BaseProcess]
) -> None:
    accessor = AsynchronousDataAccessor(
        TensorDataset(torch.arange(4)), sharing_strategy=FORK
    )
    for _ in range(batches):
        next(accessor)
    kill(find_worker())

    # The end of the pass may have been sent, or not.
    parts = [list, list] if batches == 1 else [lambda each: next(each, None), list]
    with pytest.raises(AssertionError, match="RuntimeError: The process"):
        [part(accessor) for part in parts]
    accessor.terminate()


def test_an_empty_data_set_is_an_error() -> None:
    with pytest.raises(poptorch.Error, match="The Dataset is empty"):
        AsynchronousDataAccessor(TensorDataset(torch.empty(0)), sharing_strategy=FORK)


def test_items_without_a_length_are_not_made_into_batches() -> None:
    with pytest.raises(poptorch.Error, match="must all have a first dimension"):
        AsynchronousDataAccessor(
            Made(4, torch.tensor), rebatched_size=2, sharing_strategy=FORK
        )


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise ValueError


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_first_batch_is_raised_at_once(
    workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = torch.utils.data.DataLoader(Broken(), num_workers=workers)

    with pytest.raises(poptorch.Error) as error:
        AsynchronousDataAccessor(loader, sharing_strategy=FORK)

    assert str(error.value) == (
        "AsynchronousDataAccessor worker thread failed to start: loading the first "
        "batch raised ValueError"
    )
    # The rest of the traceback is in the log.
    assert "in __getitem__" in capsys.readouterr().err


@pytest.mark.parametrize(
    "strategy", [SharingStrategy.ForkServer, SharingStrategy.SharedMemory]
)
def test_a_program_that_starts_processes_when_imported_gets_one_sentence(
    strategy: SharingStrategy, tmp_path: Path
) -> None:
    program = tmp_path / "main.py"
    program.write_text(
        "import popdist.sdk\n"
        "popdist.sdk.install()\n"
        "import poptorch, torch\n"
        "data = torch.utils.data.TensorDataset(torch.arange(8))\n"
        "poptorch.AsynchronousDataAccessor(\n"
        f"    data, sharing_strategy=poptorch.SharingStrategy.{strategy.name})\n"
    )

    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=200
    )

    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "AssertionError: The loading process imports the program" in done.stderr


def test_a_data_set_that_cannot_be_pickled_is_refused_with_the_way_out() -> None:
    data = Made(2, lambda index: torch.tensor(index))

    with pytest.raises(Exception, match="lambda") as refusal:
        AsynchronousDataAccessor(data, sharing_strategy=SharingStrategy.FileSystem)

    assert "SharingStrategy.Fork" in refusal.value.__notes__[0]


def test_a_loader_that_the_program_iterates_over_is_loaded_ahead_as_well() -> None:
    loader = torch.utils.data.DataLoader(
        TensorDataset(torch.arange(3)), num_workers=1, persistent_workers=True
    )
    own = iter(loader)
    next(own)
    accessor = AsynchronousDataAccessor(loader)

    for batches in own, accessor, loader:
        assert [int(value) for (value,) in batches][-2:] == [1, 2]
    accessor.terminate()


def test_a_loader_loads_ahead_once() -> None:
    loader = poptorch.DataLoader(
        poptorch.Options(),
        TensorDataset(torch.arange(4)),
        mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": FORK},
    )

    with pytest.raises(poptorch.Error, match="already loads ahead"):
        AsynchronousDataAccessor(loader)
    loader.terminate()


@pytest.mark.parametrize(
    "arguments",
    [
        {"buffer_size": 0},
        {"rebatched_size": 1},
        {"miss_sleep_time_in_ms": -1},
        {"sharing_strategy": 3},
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        AsynchronousDataAccessor(TensorDataset(torch.arange(4)), **arguments)


# --- Ends.


@pytest.mark.parametrize("in_a_cycle", [False, True])
@pytest.mark.usefixtures("patience")
def test_a_worker_that_waits_ends_with_its_accessor(
    in_a_cycle: bool, find_worker: Callable[[], BaseProcess]
) -> None:
    accessor: Any = AsynchronousDataAccessor(
        TensorDataset(torch.arange(4)), sharing_strategy=FORK
    )
    if in_a_cycle:
        accessor.itself = accessor
    worker = find_worker()

    del accessor
    gc.collect()

    # It has ended by itself, and was not killed.
    assert worker.exitcode == 0


def test_a_worker_that_failed_ends_with_terminate(
    find_worker: Callable[[], BaseProcess],
) -> None:
    def make(index: int) -> torch.Tensor:
        return torch.tensor([0][index])

    accessor = AsynchronousDataAccessor(Made(2, make), sharing_strategy=FORK)
    worker = find_worker()

    gc.disable()
    try:
        with pytest.raises(AssertionError, match="IndexError"):
            list(accessor)
        accessor.terminate()
    finally:
        gc.enable()

    assert not worker.is_alive()


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_end_with_the_last_reference_to_their_loader(
    workers: int, find_worker: Callable[[], BaseProcess]
) -> None:
    loader = poptorch.DataLoader(
        poptorch.Options(),
        TensorDataset(torch.arange(4)),
        num_workers=workers,
        mode=poptorch.DataLoaderMode.AsyncRebatched,
        async_options={"sharing_strategy": FORK},
    )
    worker = find_worker()
    assert len(loader) == len(iter(loader)) == 4

    gc.disable()
    try:
        del loader
    finally:
        gc.enable()

    assert not worker.is_alive()


PROGRAM = """
import multiprocessing, os, signal, sys, tempfile, time
kept = tempfile.TemporaryDirectory()  # registers an exit function before torch does
import popdist.sdk
popdist.sdk.install()
import poptorch, torch

class WithProcess:
    def __iter__(self):
        process = multiprocessing.Process(target=time.sleep, args=(900,), daemon=True)
        process.start()
        while True:
            yield process.pid

def main(how):
    loaders = [
        poptorch.DataLoader(
            poptorch.Options(),
            torch.utils.data.TensorDataset(torch.arange(1000)),
            num_workers=workers,
            mode=poptorch.DataLoaderMode.Async,
            async_options={"sharing_strategy": poptorch.SharingStrategy.Fork},
        )
        for workers in (0, 1)
    ]
    # More than fits into a pipe: the process waits for this one to read it.
    loaders.append(
        poptorch.AsynchronousDataAccessor(
            100 * [bytes(1 << 20)], sharing_strategy=poptorch.SharingStrategy.Fork
        )
    )
    loaders.append(
        poptorch.AsynchronousDataAccessor(
            WithProcess(), sharing_strategy=poptorch.SharingStrategy.Fork
        )
    )
    for loader in loaders:
        for batch in loader:
            break
    # The last batch is the process that the data set has started.
    children = multiprocessing.active_children()
    print(batch, *(child.pid for child in children), flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises":
        raise KeyError(how)
    if how == "deleted":
        del loader, loaders

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["ends", "raises", "deleted", "killed"])
def test_the_loading_process_ends_with_the_program(how: str, tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, program, how], capture_output=True, text=True, timeout=200
    )

    codes = {"raises": 1, "killed": -signal.SIGKILL}
    assert done.returncode == codes.get(how, 0), done.stderr
    assert ("Traceback" in done.stderr) == (how == "raises")
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 5
    wait_until(lambda: all(is_gone(pid) for pid in pids))


def iterate(limit: int) -> Iterator[torch.Tensor]:
    for number in range(limit):
        yield torch.tensor(number)


def test_any_iterable_can_be_loaded_once() -> None:
    accessor = AsynchronousDataAccessor(iterate(3), sharing_strategy=FORK)

    assert [int(value) for value in accessor] == [0, 1, 2]
    accessor.terminate()
