"""AsynchronousDataAccessor: batches that another process loads ahead."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Self

import torch

from .._logging import logger
from ..enums import SharingStrategy
from ..errors import createPoptorchError, require, require_poptorch
from . import fetcher
from .grouping import group_count, regroup
from .loading_process import LoadingProcess
from .ring_slot import read


class _Source:
    """What the loading process iterates over, once for each pass."""

    # Any: a data set may be any iterable.
    def __init__(self, dataset: Any, size: int | None, drop_last: bool) -> None:
        self._dataset = dataset
        self._size = size
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        dataset = self._dataset
        if not hasattr(dataset, "__iter__"):
            # Map-style data sets have no end of their own.
            dataset = map(dataset.__getitem__, range(len(dataset)))
        others = iter(dataset)
        first = list(islice(others, 1))
        require(first, "The Dataset is empty")
        items = chain(first, others)
        if self._size is None:
            return items
        return regroup(items, self._size, self._drop_last)


class AsynchronousDataAccessor:
    """Loads in another process, up to `buffer_size` batches ahead.

    The tensors of a batch lie in memory that the next batches will use: clone those
    that are needed after the next one was asked for.

    Args:
        dataset: A DataLoader, a data set, or any other iterable.
        buffer_size: How many batches there is memory for.
        miss_sleep_time_in_ms: Has no effect: the process that waits is woken.
        load_indefinitely: Whether the next pass is loaded ahead as well.
        early_preload: Whether more than the first batch is loaded now, and not
            with the first pass.
        sharing_strategy: How the loading process starts and gets the data set.
        rebatched_size: Into how many samples items are made; None: they stay as
            they are.

    Raises:
        Error: The DataLoader loads in another process already, or the first batch
            could not be loaded.
        AssertionError: An argument is not valid.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        # __del__ reads it, whatever is raised here.
        self._process: LoadingProcess | None = None
        _check_arguments(
            buffer_size, miss_sleep_time_in_ms, sharing_strategy, rebatched_size
        )
        if getattr(dataset, "_accessor", None) is not None:
            raise createPoptorchError(
                "In its mode, the loader already loads ahead. Iterate over it, or "
                "create it with DataLoaderMode.Sync."
            )
        self.rebatched_size = rebatched_size
        self._dataset = dataset
        # Torch's own loaders say so too, but of batches of another size.
        self._drop_last = bool(getattr(dataset, "rebatched_drop_last", True))
        self._memories: list[torch.Tensor] = [torch.empty(0)] * buffer_size
        # The pass under way, whether it has returned a batch, and in which slot.
        self._pass = 0
        self._is_begun = False
        # Whether this pass was asked for and has not ended; None: none was so far.
        self._is_wanted: bool | None = None
        self._slot: int | None = None
        self._failure: str | None = None
        separate = getattr(dataset, "_for_loading_process", None)
        self._process = LoadingProcess(
            _Source(
                separate() if separate else dataset, rebatched_size, self._drop_last
            ),
            fetcher.LoadingSettings(
                buffer_size=buffer_size,
                load_indefinitely=load_indefinitely,
                early_preload=early_preload,
            ),
            sharing_strategy,
        )
        # What the process has sent of the first pass already.
        self._first: fetcher.Batch | fetcher.End | None = self._load_first(
            self._process
        )

    def _load_first(
        self, process: LoadingProcess
    ) -> fetcher.Batch | fetcher.End | None:
        """Wait for the first batch, so that a data set that fails does so here."""
        logger.debug("AsynchronousDataAccessor worker process: %d", process.pid)
        try:
            message = process.receive()
        except BaseException:
            self.terminate()
            raise
        if not isinstance(message, fetcher.Failure):
            return message
        self.terminate()
        logger.error("Loading the first batch raised:\n%s", message.text)
        raise createPoptorchError(
            "AsynchronousDataAccessor worker thread failed to start: loading the first "
            f"batch raised {message.text.splitlines()[-1]}"
        )

    def terminate(self) -> None:
        """End the loading process."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def __del__(self) -> None:
        self.terminate()

    def __len__(self) -> int:
        if getattr(self._dataset, "_accessor", None) is self:
            # The loader has made batches out of it already.
            return len(self._dataset)
        length = len(self._dataset)
        if self.rebatched_size is None:
            return length
        return group_count(length, self.rebatched_size, self._drop_last)

    def __iter__(self) -> Self:
        """Begin a pass; one under way is left off."""
        if self._is_begun:
            self._pass += 1
            self._is_begun = False
        self._running().send(fetcher.Begin(self._pass))
        self._is_wanted = True
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            AssertionError: Loading raised an exception, or its process ended.
        """
        if self._is_wanted is None:
            iter(self)
        process = self._running()
        if not self._is_wanted:
            raise StopIteration
        if self._slot is not None:
            process.send(fetcher.Free(self._slot))
            self._slot = None
        while True:
            require(self._failure is None, f"{self._failure}")
            message = self._first or process.receive()
            self._first = None
            if isinstance(message, fetcher.Batch):
                if message.memory is not None:
                    self._memories[message.slot] = message.memory
                if message.number < self._pass:
                    process.send(fetcher.Free(message.slot))
                    continue
                self._is_begun = True
                self._slot = message.slot
                return read(self._memories[message.slot], message.placed)
            if isinstance(message, fetcher.Failure):
                self._failure = (
                    f"An error occurred in the data fetcher:\n{message.text}"
                )
            elif message.number == self._pass:
                self._pass += 1
                self._is_begun = self._is_wanted = False
                raise StopIteration

    def _running(self) -> LoadingProcess:
        if self._process is None:
            raise createPoptorchError(
                "The loading process was terminated: make a new DataLoader to load "
                "again."
            )
        return self._process


def _check_arguments(
    buffer_size: object,
    miss_sleep_time_in_ms: float,
    sharing_strategy: SharingStrategy,
    rebatched_size: int | None,
) -> None:
    require(
        isinstance(buffer_size, int) and buffer_size > 0,
        f"buffer_size is {buffer_size!r}, but must be a positive integer.",
    )
    require(
        miss_sleep_time_in_ms >= 0,
        f"miss_sleep_time_in_ms is {miss_sleep_time_in_ms}, but must not be negative.",
    )
    require_poptorch(sharing_strategy, SharingStrategy)
    require(
        rebatched_size is None or rebatched_size > 1,
        f"rebatched_size is {rebatched_size}, but must be None or above 1.",
    )
