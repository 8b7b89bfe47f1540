from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import poptorch

pytestmark = [
    # A fork of a process with threads, and more workers than this machine has cores.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def loaders(
    samples: int, processes: int, options: dict[str, int] | None = None, **kwargs: Any
) -> list[poptorch.DataLoader]:
    """Return the loader of each process."""
    made = []
    for process in range(processes):
        opts = poptorch.Options().randomSeed(2022)
        for name, value in (options or {}).items():
            target = opts.Training if name == "gradientAccumulation" else opts
            getattr(target, name)(value)
        opts.Distributed.configureProcessId(process, processes)
        dataset = TensorDataset(torch.arange(samples))
        made.append(poptorch.DataLoader(opts, dataset, **kwargs))
    return made


def loaded(loader: poptorch.DataLoader) -> list[list[int]]:
    """Return the samples of each batch of one pass."""
    return [batch.tolist() for (batch,) in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


CASES = {
    "samples": st.integers(1, 120),
    "processes": st.integers(1, 5),
    "batch_size": st.integers(1, 4),
    "factors": st.tuples(*[st.integers(1, 3)] * 3),
    "shuffle": st.booleans(),
}


@settings(max_examples=150, deadline=None)
@given(**CASES)
def test_full_batches_of_equally_many_samples_and_none_twice(
    samples: int,
    processes: int,
    batch_size: int,
    factors: tuple[int, int, int],
    shuffle: bool,
) -> None:
    names = ("deviceIterations", "replicationFactor", "gradientAccumulation")
    options = dict(zip(names, factors, strict=True))
    step = batch_size * factors[0] * factors[1] * factors[2]
    arguments = {"batch_size": batch_size, "shuffle": shuffle}
    if processes > 1 and samples < step * processes:
        with pytest.raises(ZeroDivisionError, match=f"has {samples} samples"):
            loaders(samples, processes, options, **arguments)
        return

    made = loaders(samples, processes, options, **arguments)
    passes = [[loaded(loader) for loader in made] for _ in range(3)]

    batches = samples // (step * processes)
    assert [len(loader) for loader in made] == [batches] * processes
    for parts in passes:
        assert [[len(batch) for batch in part] for part in parts] == (
            [[step] * batches] * processes
        )
        everything = [sample for part in parts for sample in flat(part)]
        assert len(set(everything)) == len(everything) == batches * step * processes
        assert set(everything) <= set(range(samples))
        if not shuffle:
            assert everything == list(range(len(everything)))


@settings(max_examples=150, deadline=None)
@given(**CASES)
def test_without_drop_last_each_sample_is_loaded_once(
    samples: int,
    processes: int,
    batch_size: int,
    factors: tuple[int, int, int],
    shuffle: bool,
) -> None:
    names = ("deviceIterations", "replicationFactor", "gradientAccumulation")
    options = dict(zip(names, factors, strict=True))
    step = batch_size * factors[0] * factors[1] * factors[2]

    made = loaders(
        samples,
        processes,
        options,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=False,
    )
    for _ in range(2):
        parts = [loaded(loader) for loader in made]

        lengths = [
            samples // processes + (process < samples % processes)
            for process in range(processes)
        ]
        assert [len(flat(part)) for part in parts] == lengths
        everything = [sample for part in parts for sample in flat(part)]
        assert sorted(everything) == list(range(samples))
        assert shuffle or everything == list(range(samples))
        for part, loader in zip(parts, made, strict=True):
            assert len(part) == len(loader)
            assert all(len(batch) == step for batch in part[:-1])


def test_each_process_loads_a_contiguous_block() -> None:
    first, second = loaders(23, 2, {"replicationFactor": 2}, batch_size=2)

    assert loaded(first) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loaded(second) == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert len(first.dataset) == len(second.dataset) == 8


def test_leftovers_are_loaded_in_every_other_pass() -> None:
    made = loaders(11, 2, batch_size=4, shuffle=True)
    generator = torch.Generator().manual_seed(2022)

    for moved in (3, 0, 3, 0):
        order = torch.randperm(11, generator=generator).tolist()
        assert [loaded(loader) for loader in made] == [
            [order[moved : moved + 4]],
            [order[moved + 4 : moved + 8]],
        ]


def test_shuffling_is_reproducible_and_another_in_each_pass() -> None:
    first = [loaded(loaders(40, 2, batch_size=4, shuffle=True)[0]) for _ in range(2)]
    loader = loaders(40, 2, batch_size=4, shuffle=True)[0]

    assert first[0] == first[1] == loaded(loader)
    assert loaded(loader) != first[0]


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_that_live_on_see_each_new_order(workers: int) -> None:
    arguments = {"batch_size": 4, "shuffle": True}
    (plain, _), (with_workers, _) = (
        loaders(43, 2, num_workers=n, **arguments) for n in (0, workers)
    )

    for _ in range(3):
        assert loaded(with_workers) == loaded(plain)


def test_a_data_set_that_loads_several_at_once_still_does() -> None:
    class Several(TensorDataset):
        def __getitems__(self, indices: list[int]) -> Any:
            return [(self.tensors[0][index],) for index in indices]

        def __getitem__(self, index: int) -> Any:
            raise AssertionError

    options = poptorch.Options()
    options.Distributed.configureProcessId(1, 2)
    loader = poptorch.DataLoader(options, Several(torch.arange(8)), batch_size=2)

    assert loaded(loader) == [[4, 5], [6, 7]]


def test_shuffling_in_several_processes_needs_a_seed() -> None:
    options = poptorch.Options()
    options.Distributed.configureProcessId(0, 2)
    dataset = TensorDataset(torch.arange(8))

    with pytest.raises(AssertionError) as refusal:
        poptorch.DataLoader(options, dataset, shuffle=True)

    assert str(refusal.value) == (
        "The data set is shuffled and divided among processes, which need one order. "
        "Set poptorch.Options.randomSeed()."
    )
    whole = poptorch.DataLoader(
        options, dataset, shuffle=True, auto_distributed_partitioning=False
    )
    assert sorted(flat(loaded(whole))) == list(range(8))


def test_a_sampler_of_the_whole_data_set_is_refused() -> None:
    (loader, _) = loaders(8, 2, sampler=[0, 7])

    with pytest.raises(IndexError, match="7 is not an index of the 4 samples"):
        loaded(loader)


@pytest.mark.parametrize(
    ("processes", "options", "batch_size", "batches", "combined"),
    [
        (1, {}, 32, 1562, 32),
        (4, {}, 32, 390, 32),
        (4, {"replicationFactor": 2}, 32, 195, 64),
        (1, {"gradientAccumulation": 8, "deviceIterations": 4}, 64, 24, 2048),
        (
            1,
            {"gradientAccumulation": 8, "deviceIterations": 4, "replicationFactor": 8},
            64,
            3,
            16384,
        ),
        (
            4,
            {"gradientAccumulation": 8, "deviceIterations": 4, "replicationFactor": 2},
            64,
            3,
            4096,
        ),
        # Two replicas get the same input.
        (1, {"replicationFactor": 4, "inputReplicaGrouping": 2}, 32, 781, 64),
    ],
)
def test_lengths_of_cifar10(
    processes: int,
    options: dict[str, int],
    batch_size: int,
    batches: int,
    combined: int,
) -> None:
    for loader in loaders(50000, processes, options, batch_size=batch_size):
        assert len(loader) == batches
        assert loader.combinedBatchSize == combined
        (batch,) = next(iter(loader))
        assert len(batch) == combined
