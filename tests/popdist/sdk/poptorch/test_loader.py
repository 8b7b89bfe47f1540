import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
    get_worker_info,
)

import poptorch
from popdist.engine.tuning import cores_of_host
from poptorch import DataLoaderMode

pytestmark = [
    # A fork of a process with threads, and more workers than this machine has cores.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}


def dataset(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples), 2.5 * torch.arange(samples))


def loaded(loader: Any) -> list[list[int]]:
    """Return the samples of each batch of one pass, whose second tensor is checked."""
    batches = []
    for first, second in loader:
        assert torch.equal(second, 2.5 * first)
        batches.append(first.tolist())
    return batches


class Count(IterableDataset[Any]):
    """The numbers below a limit, each from one of the workers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, self.limit, step):
            yield torch.tensor(number), torch.tensor(2.5 * number)


def test_a_loader_freezes_the_options_that_it_returns() -> None:
    options = poptorch.Options()

    loader = poptorch.DataLoader(options, dataset(4))

    assert loader.options is options
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.deviceIterations(2)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.Training.gradientAccumulation(2)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_loading_ahead_yields_the_same_as_loading_at_once(
    shuffle: bool, drop_last: bool, workers: int
) -> None:
    def three_passes(mode: DataLoaderMode, **arguments: Any) -> Any:
        options = poptorch.Options().randomSeed(7).deviceIterations(2)
        loader = poptorch.DataLoader(
            options,
            dataset(23),
            batch_size=2,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=workers,
            mode=mode,
            async_options=FORK if mode else None,
            **arguments,
        )
        passes = [loaded(loader) for _ in range(2)]
        # One that is left off counts, too.
        next(iter(loader))
        passes.append(loaded(loader))
        assert len(loader) == len(passes[0])
        loader.terminate()
        return passes

    sync = three_passes(DataLoaderMode.Sync)

    assert len(sync[0]) == 6 - drop_last
    assert three_passes(DataLoaderMode.Async) == sync
    assert three_passes(DataLoaderMode.AsyncRebatched) == sync
    assert three_passes(DataLoaderMode.AsyncRebatched, rebatched_worker_size=1) == sync
    assert three_passes(DataLoaderMode.AsyncRebatched, rebatched_worker_size=3) == sync


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_a_process_that_loads_ahead_shuffles_as_the_others_do(
    mode: DataLoaderMode,
) -> None:
    parts = []
    for process in range(2):
        options = poptorch.Options().randomSeed(3)
        options.Distributed.configureProcessId(process, 2)
        loader = poptorch.DataLoader(
            options,
            dataset(11),
            batch_size=4,
            shuffle=True,
            mode=mode,
            async_options=FORK if mode else None,
        )
        parts.append([loaded(loader) for _ in range(2)])
        loader.terminate()

    generator = torch.Generator().manual_seed(3)
    for number, moved in enumerate((3, 0)):
        order = torch.randperm(11, generator=generator).tolist()
        assert parts[0][number] == [order[moved : moved + 4]]
        assert parts[1][number] == [order[moved + 4 : moved + 8]]


@pytest.mark.parametrize(
    "arguments",
    [{"mode": DataLoaderMode.Async}, {"multiprocessing_context": "forkserver"}],
    ids=["in a loading process", "started by a forkserver"],
)
def test_workers_load_a_shuffled_part(arguments: dict[str, Any]) -> None:
    options = poptorch.Options().randomSeed(3)
    options.Distributed.configureProcessId(1, 2)
    loader = poptorch.DataLoader(
        options, dataset(11), batch_size=4, shuffle=True, num_workers=1, **arguments
    )

    passes = [loaded(loader) for _ in range(2)]
    loader.terminate()

    generator = torch.Generator().manual_seed(3)
    for number, moved in enumerate((3, 0)):
        order = torch.randperm(11, generator=generator).tolist()
        assert passes[number] == [order[moved + 4 : moved + 8]]


@pytest.mark.parametrize(
    ("mode", "drop_last", "used"),
    [
        # Each of the 7 workers leaves out what fills no batch.
        (DataLoaderMode.Sync, True, 84),
        (DataLoaderMode.AsyncRebatched, True, 100),
        (DataLoaderMode.AsyncRebatched, False, 101),
    ],
)
def test_rebatching_uses_what_workers_would_leave_out(
    mode: DataLoaderMode, drop_last: bool, used: int
) -> None:
    loader = poptorch.DataLoader(
        poptorch.Options(),
        Count(101),
        batch_size=4,
        num_workers=7,
        drop_last=drop_last,
        mode=mode,
        worker_init_fn=int,
        rebatched_worker_size=1,
        async_options=FORK if mode else None,
    )

    batches = loaded(loader)
    loader.terminate()

    samples = [sample for batch in batches for sample in batch]
    assert len(samples) == len(set(samples)) == used
    assert all(len(batch) == 4 for batch in batches[: 100 // 4 if used > 100 else None])


def test_an_iterable_data_set_with_a_length_gives_loaders_one() -> None:
    data = poptorch.FixedLengthIterableDataset(Count(1000), 10)

    loader = poptorch.DataLoader(poptorch.Options(), data, batch_size=4)

    assert (len(data), len(loader)) == (10, 2)
    assert loaded(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_data_set_with_a_length_takes_no_sample_beyond_it() -> None:
    samples = iter(range(5))

    assert list(poptorch.FixedLengthIterableDataset(samples, 2)) == [0, 1]
    assert list(poptorch.FixedLengthIterableDataset(samples, 4)) == [2, 3, 4]


def test_batches_of_a_sampler_are_joined_for_one_call() -> None:
    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    sampler = BatchSampler(range(11), batch_size=2, drop_last=True)

    loader = poptorch.DataLoader(options, dataset(11), batch_sampler=sampler)
    whole = poptorch.DataLoader(
        options, dataset(11), batch_sampler=sampler, drop_last=False
    )

    assert loaded(loader) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert loaded(whole) == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]
    assert (len(loader), len(whole)) == (1, 2)
    assert loader.combinedBatchSize == 8


def test_rebatching_leaves_the_batches_of_a_sampler_together() -> None:
    loader = poptorch.DataLoader(
        poptorch.Options().deviceIterations(2),
        dataset(11),
        batch_sampler=[[8, 9], [1, 2], [3, 4], [5], [6, 7], [0]],
        drop_last=False,
        num_workers=2,
        mode=DataLoaderMode.AsyncRebatched,
        async_options=FORK,
    )

    for _ in range(2):
        assert loaded(loader) == [[8, 9, 1, 2], [3, 4, 5], [6, 7, 0]]
    assert len(loader) == 3
    loader.terminate()


class Backwards(Sampler[int]):
    """As samplers are written for the torch of PopTorch."""

    def __init__(self, data_source: Any, **kwargs: Any) -> None:
        super().__init__(data_source, **kwargs)
        self.size = len(data_source)

    def __iter__(self) -> Iterator[int]:
        return reversed(range(self.size))

    def __len__(self) -> int:
        return self.size


class Named:
    def __init__(self, size: Any, name: str = "") -> None:
        self.name = name


class NamedBackwards(Backwards, Named):
    """Another base class after Sampler still gets the arguments."""


def test_samplers_may_pass_their_data_source_on() -> None:
    sampler = Backwards(dataset(4))
    loader = poptorch.DataLoader(
        poptorch.Options(), dataset(4), batch_size=2, sampler=sampler
    )

    assert loaded(loader) == [[3, 2], [1, 0]]
    assert NamedBackwards(dataset(3), name="all").name == "all"
    with pytest.raises(TypeError):
        Backwards(dataset(4), name="none")


class Padded:
    """A batch of a class of the program's own."""

    def __init__(self, values: torch.Tensor, mask: torch.Tensor) -> None:
        self.values = values
        self.mask = mask


class PaddedParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        yield struct.values
        yield struct.mask

    def reconstruct(self, original_structure: Any, tensor_iterator: Any) -> Padded:
        return Padded(*tensor_iterator)


poptorch.registerCustomArgParser(Padded, PaddedParser())


def pad_to_three(samples: list[Any]) -> Padded:
    values = torch.full((3,), -1)
    values[: len(samples)] = torch.stack([first for first, _ in samples])
    return Padded(values, values >= 0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_each_batch_of_a_sampler_is_padded_by_itself(
    mode: DataLoaderMode, workers: int
) -> None:
    loader = poptorch.DataLoader(
        poptorch.Options().deviceIterations(2),
        dataset(9),
        batch_sampler=[[0], [1, 2], [3, 4, 5], [6, 7], [8]],
        collate_fn=pad_to_three,
        drop_last=False,
        num_workers=workers,
        mode=mode,
        async_options=FORK if mode else None,
    )

    for _ in range(2):
        batches = [batch.values.tolist() for batch in loader]
        assert batches == [[0, -1, -1, 1, 2, -1], [3, 4, 5, 6, 7, -1], [8, -1, -1]]
    loader.terminate()


def named(samples: list[Any]) -> dict[str, Any]:
    values = torch.stack([first for first, _ in samples])
    return {"values": values, "names": [f"sample {value}" for value in values.tolist()]}


def test_text_that_differs_between_joined_batches_is_refused() -> None:
    options = poptorch.Options().deviceIterations(2)
    loader = poptorch.DataLoader(
        options, dataset(4), batch_sampler=[[0], [1], [2], [3]], collate_fn=named
    )

    with pytest.raises(poptorch.Error, match=r"hold \['sample 0'\] and \['sample 1'\]"):
        list(loader)


def test_rebatching_leaves_text_in_batches_of_the_same_size() -> None:
    loader = poptorch.DataLoader(
        poptorch.Options(),
        dataset(4),
        batch_size=2,
        collate_fn=named,
        mode=DataLoaderMode.AsyncRebatched,
        async_options=FORK,
    )

    assert [batch["names"] for batch in loader] == [
        ["sample 0", "sample 1"],
        ["sample 2", "sample 3"],
    ]
    loader.terminate()


def test_torch_collates_the_batches_of_a_sampler_together() -> None:
    samples = [(value, f"file{value}") for value in range(4)]
    loader = poptorch.DataLoader(
        poptorch.Options().deviceIterations(2), samples, batch_sampler=[[0, 1], [2, 3]]
    )

    ((values, files),) = loader

    assert values.tolist() == [0, 1, 2, 3]
    assert tuple(files) == ("file0", "file1", "file2", "file3")


def test_without_a_batch_size_the_data_set_has_batches() -> None:
    data = TensorDataset(torch.arange(6).reshape(3, 2), torch.arange(6.0).reshape(3, 2))
    loader = poptorch.DataLoader(poptorch.Options(), data, batch_size=None)

    assert [first.tolist() for first, _ in loader] == [[0, 1], [2, 3], [4, 5]]
    assert loader.combinedBatchSize is None


def refused(**arguments: Any) -> str:
    options = poptorch.Options().deviceIterations(2)
    options.Distributed.configureProcessId(0, arguments.pop("processes", 1))
    arguments = {"dataset": dataset(16), **arguments}
    with pytest.raises(AssertionError) as refusal:
        poptorch.DataLoader(options, **arguments)
    return str(refusal.value)


def test_arguments_that_exclude_each_other_are_refused() -> None:
    sampler = BatchSampler(range(8), 2, drop_last=True)
    exclusive = "`batch_sampler` option is mutually exclusive with "

    assert refused(batch_sampler=sampler, shuffle=True) == (
        f"{exclusive}batch_size, shuffle."
    )
    assert refused(batch_sampler=sampler, batch_size=2) == (
        f"{exclusive}batch_size, shuffle."
    )
    assert refused(batch_sampler=sampler, processes=2) == (
        f"{exclusive}auto_distributed_partitioning=True."
    )
    assert refused(dataset=Count(8), processes=2) == (
        "An IterableDataset cannot be divided among processes here. Divide it in the "
        "program, and set auto_distributed_partitioning=False."
    )
    assert refused(batch_size=None, processes=2) == (
        "A data set cannot be divided among processes with batch_size=None. Set a "
        "batch size, or auto_distributed_partitioning=False."
    )
    assert "5, but may be at most the 4 samples of a combined batch" in refused(
        batch_size=2, mode=DataLoaderMode.AsyncRebatched, rebatched_worker_size=5
    )
    assert "has a rebatched_size, which the loader sets" in refused(
        mode=DataLoaderMode.AsyncRebatched, async_options={"rebatched_size": 2}
    )
    assert "rebatched_worker_size cannot be combined with a batch_sampler" in refused(
        batch_sampler=sampler,
        mode=DataLoaderMode.AsyncRebatched,
        rebatched_worker_size=1,
    )
    assert "needs a batch_size" in refused(
        mode=DataLoaderMode.AsyncRebatched, batch_size=None
    )
    assert "is not a poptorch.DataLoaderMode" in refused(mode="Async")


def test_an_iterable_data_set_can_be_divided_by_the_program() -> None:
    options = poptorch.Options()
    options.Distributed.configureProcessId(0, 2)

    loader = poptorch.DataLoader(
        options, Count(4), batch_size=2, auto_distributed_partitioning=False
    )

    assert loaded(loader) == [[0, 1], [2, 3]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(
        poptorch.logger, "warning", lambda text, *values: lines.append(text % values)
    )
    return lines


def test_a_last_batch_of_another_size_is_warned_of(log: list[str]) -> None:
    options = poptorch.Options()
    poptorch.DataLoader(options, dataset(8), batch_size=4, drop_last=False)
    assert log == []

    poptorch.DataLoader(options, dataset(11), batch_size=4, drop_last=False)

    (line,) = log
    assert line == (
        "11 samples make no whole number of batches of 4: the last batch has 3. "
        "drop_last=True leaves it out."
    )


def test_workers_that_all_load_the_whole_are_warned_of(log: list[str]) -> None:
    poptorch.DataLoader(poptorch.Options(), Count(8), num_workers=3)

    (line,) = log
    assert line.startswith("Each of 3 workers loads the whole IterableDataset")


@pytest.mark.parametrize(
    "arguments",
    [{"mode": DataLoaderMode.Async, "async_options": FORK}, {"num_workers": 1}],
    ids=["ahead", "by a worker"],
)
def test_processes_that_load_have_cores_that_torch_leaves_them(
    arguments: dict[str, Any],
) -> None:
    cores = min(len(os.sched_getaffinity(0)), cores_of_host())
    before = torch.get_num_threads()
    torch.set_num_threads(cores + 1)
    try:
        loader = poptorch.DataLoader(poptorch.Options(), dataset(8), **arguments)
        next(iter(loader))
        assert torch.get_num_threads() == max(1, cores - 1)
        loader.terminate()
        del loader
        gc.collect()
        assert torch.get_num_threads() == cores + 1
    finally:
        torch.set_num_threads(before)
