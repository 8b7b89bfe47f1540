"""AsynchronousDataAccessor: batches that workers load ahead.

Any: data sets may be any iterables, and yield whatever programs return.
"""

import multiprocessing
import os
import random
import signal
import threading
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset, _utils

from .._logging import logger
from ..enums import SharingStrategy
from ..errors import createPoptorchError, require, require_poptorch
from .core_sharing import leave_cores_to_workers
from .grouping import group_count, regroup
from .helper_processes import end_helpers_at_exit, is_importing_main
from .shared_memory import can_have_workers, dumps, send_without_dev_shm

METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
# The module that a forkserver imports once for all its forks, if it can.
PRELOADED = "popdist.sdk.forkserver_preload"
# The exit code of a worker if the import of the program starts workers.
UNGUARDED = 113
# A note for the errors of starting the worker.
NOT_PICKLABLE = (
    "The data set is sent to a separate process, so it must be picklable: its class "
    "must be in a module, and it may have no lambdas. With "
    "async_options={'sharing_strategy': poptorch.SharingStrategy.Fork} it need not be "
    "picklable."
)


# The states of the generators of torch, Python and numpy.
_RandomStates = tuple[Any, Any, Any]


def _random_states() -> _RandomStates:
    # An array of numpy is pickled by value.
    torch_state = torch.get_rng_state().numpy()
    return torch_state, random.getstate(), numpy.random.get_state()


def _set_random_states(states: _RandomStates) -> None:
    torch.set_rng_state(torch.from_numpy(states[0]))
    random.setstate(states[1])
    numpy.random.set_state(states[2])


class _Passes(IterableDataset[Any]):
    """A data set in a worker, where each iterator is a pass over it."""

    def __init__(
        self,
        items: Any,
        pickled: bytes | None,
        size: int | None,
        drop_last: bool,
        may_continue: Any,
    ) -> None:
        self._items, self._pickled = items, pickled
        self._size, self._drop_last = size, drop_last
        # Released when more than the first batch may be loaded. Not an Event: to set
        # one blocks if the worker has been killed while it waited.
        self._may_continue = may_continue
        # The worker continues with the program's random numbers.
        self._random_states: _RandomStates | None = _random_states()

    def __iter__(self) -> Iterator[Any]:
        if self._random_states is not None:
            _set_random_states(self._random_states)
            self._random_states = None
            self._begin_worker()
        for batch in _grouped(self._items, self._size, self._drop_last):
            yield batch
            with self._may_continue:
                pass

    def let_continue(self) -> None:
        """Let the worker load more than the first batch."""
        self._may_continue.release()

    def forget_items(self) -> None:
        """Free what only the worker needs."""
        self._items = self._pickled = None

    def _begin_worker(self) -> None:
        send_without_dev_shm()
        if self._pickled is not None:
            self._items = ForkingPickler.loads(self._pickled)
            self._pickled = None
        # The only worker loads as the program would. Worker functions of torch would
        # collate in /dev/shm, which may be small.
        _utils.worker._worker_info = None
        # Data sets may start processes, which torch's daemonic workers may not.
        multiprocessing.current_process().daemon = False
        # torch's own handler leaves those running.
        signal.signal(signal.SIGTERM, _end_process)
        # torch's worker would not end while it waits, or sends to a full pipe.
        threading.Thread(target=_end_with_program, daemon=True).start()


def _let_continue(loader: "DataLoader[Any]") -> None:
    passes: Any = loader.dataset
    passes.let_continue()


def _end_with_program() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _end_process()


def _end_process(*_: object) -> None:
    """End this worker and the processes that its data set has started."""
    for child in multiprocessing.active_children():
        child.terminate()
    # Another exit code would be an error to torch in the program.
    os._exit(0)


def _grouped(items: Any, size: int | None, drop_last: bool) -> Iterator[Any]:
    """Yield the batches of one pass, made of so many samples where `size` says so."""
    if not hasattr(items, "__iter__"):
        # Map-style data sets have no end of their own.
        items = map(items.__getitem__, range(len(items)))
    others = iter(items)
    first = list(islice(others, 1))
    require(first, "The Dataset is empty")
    batches = chain(first, others)
    yield from batches if size is None else regroup(batches, size, drop_last)


def _unchanged(batch: Any) -> Any:
    return batch


def _text_of(error: Exception) -> str:
    """Return the class and message of an error, with a worker's traceback in it.

    Its frames are cleared, because torch's hold the iterator, and so its worker.
    """
    traceback.clear_frames(error.__traceback__)
    return "".join(traceback.format_exception_only(error)).strip()


class AsynchronousDataAccessor:
    """Loads by workers, up to `buffer_size` batches ahead.

    One worker loads, or the workers of a DataLoader that has some.

    Args:
        dataset: A DataLoader, a data set, or any other iterable.
        buffer_size: How many batches its own worker loads ahead.
        miss_sleep_time_in_ms: Has no effect: the process that waits is woken.
        load_indefinitely: Whether the next pass is loaded ahead as well.
        early_preload: Whether its own worker loads more than the first batch now, and
            not with the first pass.
        sharing_strategy: How its own worker starts and gets the data set.
        rebatched_size: Into how many samples items are made; None: they stay as
            they are.

    Raises:
        Error: The DataLoader loads ahead already, or the first batch could not be
            loaded.
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
                "In its mode, the loader already loads ahead. Iterate over it, or "
                "create it with DataLoaderMode.Sync."
            )
        self.rebatched_size = rebatched_size
        self._dataset = dataset
        # Torch's own loaders say so too, but of batches of another size.
        self._drop_last = bool(getattr(dataset, "rebatched_drop_last", True))
        self._loads_next_pass = load_indefinitely
        # Whether the pass under way has returned a batch.
        self._is_begun = False
        # Whether this pass was asked for and has not ended; None: none was so far.
        self._is_wanted: bool | None = None
        self._failure: str | None = None
        separate = getattr(dataset, "_separate", None)
        items = separate() if separate else dataset
        # Lets the accessor's own worker end; None without one.
        self._end: weakref.finalize[..., Any] | None = None
        # The source of each pass; None after terminate().
        self._loader: Any = items
        if not getattr(items, "num_workers", 0) and can_have_workers():
            self._loader = self._with_worker(items, buffer_size, sharing_strategy)
            # It holds the loader, because torch cannot end the worker of an iterator
            # that is freed in a cycle: its queues are closed first.
            self._end = weakref.finalize(self, _let_continue, self._loader)
            self._end.atexit = False
        if early_preload and self._end is not None:
            _let_continue(self._loader)
        # Without an own worker, this process draws the numbers that it would draw.
        self._random_states = _random_states()
        # The batches of the pass that is loaded, and the first one if it is loaded.
        self._pass: Iterator[Any] | None = None
        self._first = self._load_first()

    def _with_worker(
        self, items: Any, buffer_size: int, strategy: SharingStrategy
    ) -> "DataLoader[Any]":
        """Return a loader of whole batches by one worker."""
        if is_importing_main():
            os._exit(UNGUARDED)
        context: Any = multiprocessing.get_context(METHODS[strategy])
        if strategy == SharingStrategy.ForkServer:
            context.set_forkserver_preload([PRELOADED])
        pickled = None
        if strategy != SharingStrategy.Fork:
            end_helpers_at_exit()
            # Not by Process.start(): it would send file descriptors of tensors that
            # exist only during pickling.
            try:
                items, pickled = None, dumps(items)
            except Exception as error:
                error.add_note(NOT_PICKLABLE)
                raise
        size, drop_last = self.rebatched_size, self._drop_last
        return DataLoader(
            _Passes(items, pickled, size, drop_last, context.Semaphore(0)),
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=1,
            prefetch_factor=buffer_size,
            persistent_workers=True,
            multiprocessing_context=context,
            # Not the program's random numbers.
            generator=torch.Generator(),
        )

    def _next_pass(self) -> Iterator[Any]:
        if self._end is None:
            items = self._loader
            if isinstance(items, DataLoader):
                # Its workers begin now.
                items = iter(items)
            return _grouped(items, self.rebatched_size, self._drop_last)
        # The worker starts with the first pass, and is kept for the others.
        is_first = self._loader._iterator is None
        batches: Iterator[Any] = iter(self._loader)
        if is_first:
            leave_cores_to_workers(batches, 1)
            self._loader.dataset.forget_items()
        return batches

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Leave the program's random numbers as they are while this process loads."""
        if self._end is not None:
            yield
            return
        program = _random_states()
        _set_random_states(self._random_states)
        try:
            yield
        finally:
            self._random_states = _random_states()
            _set_random_states(program)

    def _load_first(self) -> list[Any]:
        """Wait for the first batch: a data set that fails raises here."""
        with self._own_random_numbers():
            self._pass = self._next_pass()
        try:
            with self._own_random_numbers():
                return list(islice(self._pass, 1))
        except Exception as error:
            text, code = _text_of(error), self._exit_code()
            self.terminate()
        require(
            code != UNGUARDED,
            "The loading process imports the program, and the program makes a loader "
            "when it is imported. Put the program's work below `if __name__ == "
            "'__main__':`, or load with async_options={'sharing_strategy': "
            "poptorch.SharingStrategy.Fork}.",
        )
        logger.error("Loading the first batch raised:\n%s", text)
        raise createPoptorchError(
            "AsynchronousDataAccessor worker thread failed to start: loading the first "
            f"batch raised {text.splitlines()[-1]}"
        )

    def _exit_code(self) -> int | None:
        """Return the exit code of the accessor's own worker, None while it runs."""
        (worker,) = getattr(self._pass, "_workers", None) or (None,)
        return None if worker is None else worker.exitcode

    def terminate(self) -> None:
        """End the workers."""
        if self._end is not None:
            self._end()
        self._loader = self._pass = None

    def __len__(self) -> int:
        length = len(self._dataset)
        # A loader that loads ahead counts the batches that its accessor makes.
        if self.rebatched_size is None or getattr(self._dataset, "_regrouped", None):
            return length
        return group_count(length, self.rebatched_size, self._drop_last)

    def __iter__(self) -> Self:
        """Begin a pass; one under way is left off."""
        self._check_running()
        if self._is_begun or self._pass is None:
            self._begin_pass()
        if self._end is not None:
            _let_continue(self._loader)
        self._is_wanted = True
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            AssertionError: Loading raised an exception, or a worker ended.
        """
        if self._is_wanted is None:
            iter(self)
        self._check_running()
        if not self._is_wanted:
            raise StopIteration
        if self._failure is not None or self._pass is None:
            raise AssertionError(self._failure)
        try:
            with self._own_random_numbers():
                batch = self._first.pop() if self._first else next(self._pass)
        except StopIteration:
            self._is_wanted, self._pass = False, None
            if self._loads_next_pass:
                self._begin_pass()
            raise
        except Exception as error:
            self._fail(error)
            raise AssertionError(self._failure) from None
        self._is_begun = True
        return batch

    def _begin_pass(self) -> None:
        """Begin to load a pass. If that fails, its first batch raises the error."""
        self._is_begun = False
        try:
            with self._own_random_numbers():
                self._pass = self._next_pass()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = f"An error occurred in the data fetcher:\n{_text_of(error)}"

    def _check_running(self) -> None:
        if self._loader is None:
            raise createPoptorchError(
                "The loading process was terminated: make a new DataLoader to load "
                "again."
            )
