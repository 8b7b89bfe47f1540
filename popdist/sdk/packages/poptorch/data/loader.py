"""DataLoader: batches for one call of a model, of the share of this process.

Any: samples and the arguments of torch's DataLoader have all types.
"""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch.utils.data import IterableDataset

from popdist.replicated.settings import ReplicatedSettings
from popdist.replicated.shares import share_of

from .._logging import logger
from ..enums import DataLoaderMode
from ..errors import ArgumentsError, require, require_poptorch
from ..options import Options
from .accessor import AsynchronousDataAccessor
from .core_sharing import leave_cores
from .grouping import JoinedIndices, group_count, join_each
from .partition import Partition
from .sampler_argument import accept_data_source
from .shared_memory import check_workers

accept_data_source()


class DataLoader(torch.utils.data.DataLoader[Any]):
    """A DataLoader of batches with as many samples as a call of a model takes.

    Where several processes train together, each loads a part of the data set. The
    options are frozen from then on.

    Args:
        options: The options of the model that takes the batches.
        dataset: The whole data set, in each process.
        batch_size: How many samples a replica takes at a time; None: the data
            set has batches already.
        shuffle: Whether the order is another one in each pass.
        num_workers: How many workers load.
        drop_last: Whether a last batch with less samples is left out.
        persistent_workers: Whether workers go on for the next pass; None: yes.
        auto_distributed_partitioning: Whether each process loads a part.
        mode: Where batches are loaded.
        async_options: Arguments of AsynchronousDataAccessor.
        rebatched_worker_size: With AsyncRebatched, how many samples a worker
            loads at a time; None: a whole batch.
        batch_sampler: Yields the indices that a replica takes at a time, instead
            of batch_size and shuffle. Its batches stay together in all modes.
        kwargs: Arguments of torch's DataLoader.

    Raises:
        AssertionError: An argument is not valid, or does not go with another.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._accessor: AsynchronousDataAccessor | None = None
        # How many samples the accessor groups; None: it does not.
        self._regrouped: int | None = None
        # How many batches of a sampler are joined when they are loaded.
        self._joined = 1
        require_poptorch(options, Options)
        require_poptorch(mode, DataLoaderMode)
        check_workers(num_workers)
        options._freeze()
        self._options = options
        self.rebatched_drop_last = drop_last
        distributed = options.Distributed.numProcesses > 1
        is_divided = auto_distributed_partitioning and distributed
        batches = _batches_per_call(options)
        if batch_sampler is not None:
            _check_sampler(batch_size, shuffle, is_divided, rebatched_worker_size)
            size = getattr(batch_sampler, "batch_size", None)
            self._combined_batch_size = size and size * batches
            if batches > 1 and kwargs.get("collate_fn") is None:
                batch_sampler = JoinedIndices(batch_sampler, batches, drop_last)
            else:
                # A collate_fn may pad a batch to its full size, so it gets one at a
                # time.
                self._joined = batches
            kwargs["batch_sampler"] = batch_sampler
        else:
            self._combined_batch_size = batch_size and batch_size * batches
            if isinstance(dataset, IterableDataset):
                _check_iterable(is_divided, num_workers, kwargs)
            elif is_divided:
                dataset = self._partition(dataset, bool(shuffle))
                shuffle = False
            self._warn_of_last_batch(dataset)
            kwargs |= self._size_arguments(mode, rebatched_worker_size)
            # None rather than False: torch refuses either for an IterableDataset.
            kwargs["shuffle"] = shuffle or None
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        kwargs |= {"num_workers": num_workers, "persistent_workers": persistent_workers}
        super().__init__(dataset, **kwargs)
        if mode != DataLoaderMode.Sync:
            self._load_ahead(async_options or {})

    def _partition(self, dataset: Any, shuffle: bool) -> Partition:
        require(
            not shuffle or self._options.exists("random_seed"),
            "The data set is shuffled and divided among processes, which need one "
            "order. Set poptorch.Options.randomSeed().",
        )
        if self._combined_batch_size is None:
            raise AssertionError(
                "A data set cannot be divided among processes with batch_size=None. "
                "Set a batch size, or auto_distributed_partitioning=False."
            )
        distributed = self._options.Distributed
        share = share_of(
            len(dataset),
            step=self._combined_batch_size,
            process=distributed.processId,
            processes=distributed.numProcesses,
            drop_last=self.rebatched_drop_last,
        )
        return Partition(dataset, share, self._options.random_seed if shuffle else None)

    def _warn_of_last_batch(self, dataset: Any) -> None:
        size = self._combined_batch_size
        if self.rebatched_drop_last or not size or isinstance(dataset, IterableDataset):
            return
        if last := len(dataset) % size:
            logger.warning(
                "%d samples make no whole number of batches of %d: the last batch has "
                "%d. drop_last=True leaves it out.",
                len(dataset),
                size,
                last,
            )

    def _size_arguments(
        self, mode: DataLoaderMode, worker_size: int | None
    ) -> dict[str, Any]:
        """Return torch's arguments for how many samples are loaded at a time.

        The accessor may make batches of them: it drops the last of a data set, too.
        """
        size, drop_last = self._combined_batch_size, self.rebatched_drop_last
        rebatches = mode == DataLoaderMode.AsyncRebatched
        require(
            not rebatches or size is not None,
            "DataLoaderMode.AsyncRebatched needs a batch_size.",
        )
        if rebatches or (mode == DataLoaderMode.Async and not drop_last):
            self._regrouped = None if size == 1 else size
        regrouped = self._regrouped
        if regrouped is None:
            return {"batch_size": size, "drop_last": drop_last and size is not None}
        require(
            worker_size is None or worker_size <= regrouped,
            f"rebatched_worker_size is {worker_size}, but may be at most the "
            f"{regrouped} samples of a combined batch.",
        )
        return {
            "batch_size": size if worker_size is None else worker_size,
            "drop_last": False,
        }

    def _load_ahead(self, arguments: dict[str, Any]) -> None:
        require(
            "rebatched_size" not in arguments,
            "async_options has a rebatched_size, which the loader sets. Leave it out.",
        )
        # Not the loader itself, so that its workers end when its last reference does.
        self._accessor = AsynchronousDataAccessor(
            self._separate(), **arguments, rebatched_size=self._regrouped
        )

    @property
    def combinedBatchSize(self) -> int | None:
        """How many samples of the data set one call of the model takes."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options that the loader was made with."""
        return self._options

    def terminate(self) -> None:
        """End the worker that loads ahead, if there is one."""
        if self._accessor is not None:
            self._accessor.terminate()

    def __len__(self) -> int:
        size = self._regrouped
        if size is None:
            drop_last = self.rebatched_drop_last
            return group_count(super().__len__(), self._joined, drop_last)
        is_iterable = isinstance(self.dataset, IterableDataset)
        samples: Any = self.dataset if is_iterable else self.sampler
        return group_count(len(samples), size, self.rebatched_drop_last)

    def __iter__(self) -> Any:
        if self._accessor is not None:
            return iter(self._accessor)
        if isinstance(self.dataset, Partition):
            self.dataset.begin_pass()
        batches: Iterator[Any] = super().__iter__()
        if self._joined > 1:
            return join_each(batches, self._joined, self.rebatched_drop_last)
        return batches

    def _get_iterator(self) -> Any:
        iterator = super()._get_iterator()
        if self.num_workers:
            leave_cores(self.num_workers)
            weakref.finalize(iterator, leave_cores, -self.num_workers).atexit = False
        return iterator

    def _separate(self) -> Self:
        """Return a loader of the same batches that continues by itself."""
        dataset: Any = self.dataset
        if isinstance(dataset, Partition):
            dataset = dataset.separate()
        other = self.__class__.__new__(self.__class__)
        # Torch's __setattr__ refuses to change a loader.
        other.__dict__.update(self.__dict__)
        other.__dict__.update(_accessor=None, _iterator=None, dataset=dataset)
        return other


def _batches_per_call(options: Options) -> int:
    """Return how many batches of the data set one call of a model takes."""
    replicas, grouped = options.replication_factor, options.input_group_size
    require(
        replicas % grouped == 0,
        f"inputReplicaGrouping has groups of {grouped}, but {replicas} replicas cannot "
        "be divided into such.",
    )
    return ReplicatedSettings(
        device_iterations=options.device_iterations,
        gradient_accumulation=options.Training.gradient_accumulation,
        replicas=replicas,
        input_group_size=grouped,
    ).micro_batches


def _check_sampler(
    batch_size: int | None,
    shuffle: bool | None,
    is_divided: bool,
    rebatched_worker_size: int | None,
) -> None:
    """Raise an AssertionError if an argument does not go with a batch_sampler."""
    for excluded, argument in (
        (batch_size != 1 or shuffle, "batch_size, shuffle"),
        (is_divided, "auto_distributed_partitioning=True"),
    ):
        if excluded:
            raise ArgumentsError(
                f"`batch_sampler` option is mutually exclusive with {argument}."
            )
    require(
        rebatched_worker_size is None,
        "rebatched_worker_size cannot be combined with a batch_sampler, because a "
        "worker loads the sampler's batches. Leave out one of them.",
    )


def _check_iterable(
    is_divided: bool, num_workers: int, arguments: dict[str, Any]
) -> None:
    """Check the arguments for an IterableDataset, which only the program can divide."""
    require(
        not is_divided,
        "An IterableDataset cannot be divided among processes here. Divide it in the "
        "program, and set auto_distributed_partitioning=False.",
    )
    if num_workers > 1 and "worker_init_fn" not in arguments:
        logger.warning(
            "Each of %d workers loads the whole IterableDataset, so that its samples "
            "come %d times. A worker_init_fn can give each its part.",
            num_workers,
            num_workers,
        )
