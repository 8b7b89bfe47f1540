"""AsynchronousDataAccessor: batches that another process loads ahead."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from typing import Any, Self

import torch

from .._logging import logger
from ..enums import SharingStrategy
from ..errors import createPoptorchError, require, require_poptorch
from .fetcher import Batch, Begin, End, Failure, Free, HostRandomState, Settings
from .grouping import regroup
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
        batches = iter(self._items())
        first = next(batches, self)
        require(first is not self, "The Dataset is empty")
        items = _chained(first, batches)
        if self._size is None:
            return items
        return regroup(items, self._size, self._drop_last)

    def _items(self) -> Iterable[Any]:
        # Map-style data sets have no end of their own.
        if not hasattr(self._dataset, "__iter__"):
            return (self._dataset[index] for index in range(len(self._dataset)))
        items: Iterable[Any] = self._dataset
        return items


def _chained(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others


class AsynchronousDataAccessor:
    """Loads in another process, up to `buffer_size` batches ahead.

    The tensors of a batch lie in memory that the next batches will use: clone those
    that are needed after the next one was asked for.
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
        """Start the loading process.

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
        # __del__ reads it, whatever is raised here.
        self._process: LoadingProcess | None = None
        require(
            isinstance(buffer_size, int) and buffer_size > 0,
            f"buffer_size is {buffer_size!r}, but must be a positive integer.",
        )
        require(
            miss_sleep_time_in_ms >= 0,
            f"miss_sleep_time_in_ms is {miss_sleep_time_in_ms}, but must not be "
            "negative.",
        )
        require_poptorch(sharing_strategy, SharingStrategy)
        require(
            rebatched_size is None or rebatched_size > 1,
            f"rebatched_size is {rebatched_size}, but must be None or above 1.",
        )
        if getattr(dataset, "_accessor", None) is not None:
            raise createPoptorchError(
                "The loader loads ahead by itself in its mode. Iterate over it, or "
                "make it with DataLoaderMode.Sync."
            )
        self.rebatched_size = rebatched_size
        self._dataset = dataset
        # Torch's own loaders say so too, but of batches of another size.
        self._drop_last = bool(getattr(dataset, "rebatched_drop_last", True))
        separate = getattr(dataset, "_for_loading_process", None)
        source = _Source(
            separate() if separate else dataset, rebatched_size, self._drop_last
        )
        self._memories: list[torch.Tensor] = [torch.empty(0)] * buffer_size
        # The pass under way, whether it has returned a batch, and in which slot.
        self._pass = 0
        self._is_begun = False
        # Whether this pass was asked for and has not ended; None: none was so far.
        self._is_wanted: bool | None = None
        self._slot: int | None = None
        self._failure: str | None = None
        self._process = LoadingProcess(
            source,
            Settings(
                parent=os.getpid(),
                buffer_size=buffer_size,
                load_indefinitely=load_indefinitely,
                early_preload=early_preload,
                random_state=HostRandomState.read(),
                start_method=multiprocessing.get_start_method(),
            ),
            sharing_strategy,
        )
        # What the process has sent of the first pass already.
        self._first: Batch | End | None = self._load_first(self._process)

    def _load_first(self, process: LoadingProcess) -> Batch | End:
        """Wait for the first batch, so that a data set that fails does so here."""
        logger.debug("AsynchronousDataAccessor worker process: %d", process.pid)
        try:
            message = process.receive()
        except BaseException:
            self.terminate()
            raise
        if not isinstance(message, Failure):
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
        batches, rest = divmod(length, self.rebatched_size)
        return batches + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Self:
        """Begin a pass; one under way is left off."""
        if self._is_begun:
            self._pass += 1
            self._is_begun = False
        self._running().send(Begin(self._pass))
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
            process.send(Free(self._slot))
            self._slot = None
        while True:
            require(self._failure is None, f"{self._failure}")
            message = self._first or process.receive()
            self._first = None
            if isinstance(message, Batch):
                if message.memory is not None:
                    self._memories[message.slot] = message.memory
                if message.number < self._pass:
                    process.send(Free(message.slot))
                    continue
                self._is_begun = True
                self._slot = message.slot
                return read(self._memories[message.slot], message.placed)
            if isinstance(message, Failure):
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
