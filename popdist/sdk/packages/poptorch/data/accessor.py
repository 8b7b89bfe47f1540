"""AsynchronousDataAccessor: batches that another process loads ahead.

Any: data sets may be any iterables, and yield whatever programs return.
"""

import copy
import multiprocessing
import os
import random
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import Any, Self

import numpy
import torch
from torch.utils.data import DataLoader

from .._logging import logger
from ..enums import SharingStrategy
from ..errors import createPoptorchError, require, require_poptorch
from .core_sharing import leave_cores
from .grouping import group_count, regroup
from .helper_processes import end_helpers_at_exit, preload_torch
from .shared_memory import CopyingPickler, SharingPickler

# How the other strategies start a process; by default it is spawned.
METHODS = {SharingStrategy.Fork: "fork", SharingStrategy.ForkServer: "forkserver"}
# How long a process may take to end before it is killed.
GRACE_S = 5.0
# How often it is looked whether the process that loads still runs.
LOOK_S = 1.0
# The exit code of the process if the import of the program starts to load.
UNGUARDED = 113
# A note for the errors of sending the data set.
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


def _load(
    connection: Connection,
    items: Any,
    states: _RandomStates,
    size: int | None,
    drop_last: bool,
) -> None:
    """Load in this process what the other end of a connection asks for.

    A request is the number of a pass, and how many more batches of it shall be loaded.
    An answer is the number, a list of one batch or of none at the end of the pass, and
    the traceback if loading has failed. Without items, the connection brings them.
    """
    _begin_process(states)
    # Loading goes on while an answer that is larger than the pipe is sent.
    answers: SimpleQueue[memoryview] = SimpleQueue()
    threading.Thread(target=_send, args=(connection, answers), daemon=True).start()
    number, wanted = -1, 0
    batches: Iterator[Any] | None = None
    # The program has gone or has closed the connection: nothing is left to do.
    with suppress(EOFError, ConnectionError):
        pickled = connection.recv_bytes() if items is None else None
        while True:
            # All requests at once: a full pipe would stop the program.
            while not wanted or connection.poll():
                asked, more = connection.recv()
                if asked != number:
                    number, wanted, batches = asked, 0, None
                wanted += more
            try:
                if pickled is not None:
                    items, pickled = SharingPickler.loads(pickled), None
                if batches is None:
                    batches = _grouped(items, size, drop_last)
                batch = list(islice(batches, 1))
                # The memory of workers' batches is no data set's.
                pickler = SharingPickler if _workers_of(items) else CopyingPickler
                answers.put(pickler.dumps((number, batch, None)))
                wanted = wanted - 1 if batch else 0
            except Exception:
                wanted = 0
                failure = traceback.format_exc().strip()
                answers.put(SharingPickler.dumps((number, [], failure)))
    _end_process()


def _send(connection: Connection, answers: SimpleQueue[memoryview]) -> None:
    # _load() gets an error or the end of the connection, too.
    with suppress(ConnectionError):
        while True:
            connection.send_bytes(answers.get())


def _workers_of(items: Any) -> int:
    return items.num_workers if isinstance(items, DataLoader) else 0


def _begin_process(states: _RandomStates) -> None:
    # Threads of OpenMP do not survive a fork.
    torch.set_num_threads(1)
    # Data are loaded with the numbers that the program would draw for them.
    torch.set_rng_state(torch.from_numpy(states[0]))
    random.setstate(states[1])
    numpy.random.set_state(states[2])
    # Loaders and data sets may start processes, which daemonic ones may not.
    multiprocessing.current_process().daemon = False
    # The program decides about Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_process)
    # A data set that waits would keep this process after the program's end.
    threading.Thread(target=_end_with_program, daemon=True).start()


def _end_with_program() -> None:
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    # It has ended already if it does not exist.
    with suppress(ProcessLookupError):
        # A fork of the program would keep the sentinel open.
        wait([parent.sentinel, os.pidfd_open(parent.pid)])
    _end_process()


def _end_process(*_: object) -> None:
    """End this process and those that its data set has started."""
    for child in multiprocessing.active_children():
        child.terminate()
    for child in multiprocessing.active_children():
        # A signal that comes while it is being forked is lost.
        child.join(GRACE_S / 5)
        child.kill()
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


def _end_loading(process: BaseProcess, connection: Connection, workers: int) -> None:
    """End the process that loads."""
    # A signal that comes just before it reads does not interrupt the read. It takes an
    # empty message for the end of the connection, which forks may keep open.
    with suppress(OSError):
        connection.send_bytes(b"")
    process.terminate()
    process.join(GRACE_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    connection.close()
    leave_cores(-1 - workers)


class AsynchronousDataAccessor:
    """Loads in a process of its own, up to `buffer_size` batches ahead.

    Args:
        dataset: A DataLoader, a data set, or any other iterable.
        buffer_size: How many batches are loaded ahead.
        miss_sleep_time_in_ms: Has no effect: the process that waits is woken.
        load_indefinitely: Whether the next pass is loaded ahead as well.
        early_preload: Whether more than the first batch is loaded now, and not with
            the first pass.
        sharing_strategy: How the process starts and gets the data set, unless it is a
            DataLoader with workers: then as these do.
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
        self._buffer_size, self._loads_next_pass = buffer_size, load_indefinitely
        # The number of the pass that is loaded, whether it is loaded ahead, and whether
        # it has returned a batch.
        self._number, self._is_ahead, self._is_begun = 0, False, False
        # Whether this pass was asked for and has not ended; None: none was so far.
        self._is_wanted: bool | None = None
        self._failure: str | None = None
        items = dataset
        if separate := getattr(dataset, "_separate", None):
            items = separate()
        elif isinstance(dataset, DataLoader):
            # A copy, because the workers of the program's own passes serve one process.
            items = copy.copy(dataset)
            items._iterator = None
        self._start(items, sharing_strategy)
        self._request(1)
        # A data set that fails raises here.
        self._first = self._receive()
        if self._failure is not None:
            self._raise_first()
        if early_preload:
            self._load_ahead()

    def _start(self, items: Any, strategy: SharingStrategy) -> None:
        """Start the process that loads, and send it the data set."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # This is such a process, and it imports the program.
            os._exit(UNGUARDED)
        context: Any = multiprocessing.get_context(METHODS.get(strategy, "spawn"))
        workers = _workers_of(items)
        if workers:
            # As torch starts them: by default the data set need not be picklable.
            fork = multiprocessing.get_context("fork")
            context = items.multiprocessing_context or fork
        is_fork = context.get_start_method() == "fork"
        if not is_fork:
            end_helpers_at_exit()
        if context.get_start_method() == "forkserver":
            preload_torch()
        self._connection, other = context.Pipe()
        inherited = items if is_fork else None
        batching = self.rebatched_size, self._drop_last
        self._process = context.Process(
            target=_load,
            args=(other, inherited, _random_states(), *batching),
            daemon=True,
        )
        self._process.start()
        other.close()
        leave_cores(1 + workers)
        ending = (self._process, self._connection, workers)
        self._end = Finalize(self, _end_loading, ending, exitpriority=0)
        if is_fork:
            return
        try:
            # Not as an argument of the process: it would get file descriptors of
            # tensors that exist only during pickling.
            self._connection.send_bytes(SharingPickler.dumps(items))
        except ConnectionError:
            # _receive() says why the process has ended.
            pass
        except Exception as error:
            self.terminate()
            error.add_note(NOT_PICKLABLE)
            raise

    def _raise_first(self) -> None:
        """Raise the error of loading the first batch."""
        self.terminate()
        require(
            self._process.exitcode != UNGUARDED,
            "The loading process imports the program, and the program makes a loader "
            "when it is imported. Put the program's work below `if __name__ == "
            "'__main__':`, or load with async_options={'sharing_strategy': "
            "poptorch.SharingStrategy.Fork}.",
        )
        logger.error("Loading the first batch raised:\n%s", self._failure)
        raise createPoptorchError(
            "AsynchronousDataAccessor worker thread failed to start: loading the first "
            f"batch raised {str(self._failure).splitlines()[-1]}"
        )

    def terminate(self) -> None:
        """End the process that loads."""
        self._end()

    def __len__(self) -> int:
        length = len(self._dataset)
        # A loader that loads ahead counts the batches that its accessor makes.
        if self.rebatched_size is None or getattr(self._dataset, "_regrouped", None):
            return length
        return group_count(length, self.rebatched_size, self._drop_last)

    def __iter__(self) -> Self:
        """Begin a pass; one under way is left off."""
        self._check_running()
        if self._is_begun:
            self._begin_pass()
        self._load_ahead()
        self._is_wanted = True
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            AssertionError: Loading raised an exception, or the process ended.
        """
        if self._is_wanted is None:
            iter(self)
        self._check_running()
        if not self._is_wanted:
            raise StopIteration
        batch = self._first or self._receive()
        if self._failure is not None:
            raise AssertionError(
                f"An error occurred in the data fetcher:\n{self._failure}"
            )
        self._is_begun = True
        if batch:
            self._first = []
            return batch[0]
        self._is_wanted = False
        if self._loads_next_pass:
            self._begin_pass()
            self._load_ahead()
        raise StopIteration

    def _begin_pass(self) -> None:
        self._number += 1
        self._is_ahead = self._is_begun = False
        self._first = []

    def _load_ahead(self) -> None:
        if not self._is_ahead:
            self._is_ahead = True
            self._request(self._buffer_size)

    def _request(self, count: int) -> None:
        """Ask for batches of the pass. If the process has ended, _receive() says so."""
        with suppress(ConnectionError):
            self._connection.send((self._number, count))

    def _receive(self) -> list[Any]:
        """Return the next batch of the pass in a list, which is empty at its end.

        After a failure, the list is empty, too.
        """
        while self._failure is None:
            try:
                while not self._connection.poll(LOOK_S):
                    if not self._process.is_alive() and not self._connection.poll():
                        raise EOFError
                answer = self._read()
            except Exception:
                self._failure = self._reason()
                break
            if answer is not None:
                return answer
        return []

    def _read(self) -> list[Any] | None:
        """Read an answer and return its list, None if it is of another pass."""
        try:
            number, batch, failure = self._connection.recv()
            # The rest of a pass that was left off is received, too.
            if number != self._number:
                return None
            self._failure = failure
            if batch and self._is_ahead:
                self._request(1)
            return list(batch)
        except Exception:
            raise
        except BaseException:
            # Ctrl-C may have come in the middle of an answer: what follows it in the
            # connection could not be read.
            self.terminate()
            raise

    def _reason(self) -> str:
        """Return why receiving has raised the exception that is handled."""
        # Its end is seen before its exit code.
        self._process.join(LOOK_S)
        if self._process.exitcode is None:
            return traceback.format_exc().strip()
        return (
            f"RuntimeError: The process {self._process.pid}, which loads the data, "
            f"ended with exit code {self._process.exitcode}. Below 0, it is the signal "
            "that ended it: -9 is often a lack of memory."
        )

    def _check_running(self) -> None:
        if not self._end.still_active():
            raise createPoptorchError(
                "The loading process was terminated: make a new DataLoader to load "
                "again."
            )
