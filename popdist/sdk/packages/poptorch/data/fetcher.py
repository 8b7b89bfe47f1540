"""The program of the loading process: fills the slots of a ring with batches, ahead.

Passes over the data set are numbered from 0. The process that asks for batches sends
Begin and Free, at last Stop, and gets Batch, then End, for each pass, or a Failure.
"""

import multiprocessing
import os
import random
import signal
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy
import torch

from .ring_slot import Slot
from .shared_memory import dumps


class Begin(NamedTuple):
    """Load this pass, and leave off any before it."""

    number: int


class Free(NamedTuple):
    """The batch in this slot is not needed any more."""

    slot: int


class Stop(NamedTuple):
    """Load no more, and end."""


class Batch(NamedTuple):
    """A batch, with places instead of tensors, and the slot's memory if it is new."""

    number: int
    slot: int
    memory: torch.Tensor | None
    placed: Any


class End(NamedTuple):
    """A pass has no more batches."""

    number: int


class Failure(NamedTuple):
    """Loading raised an exception."""

    text: str


# Any: each generator's state is of a type of its own.
def random_states() -> tuple[Any, ...]:
    """Return the states of the generators that data sets draw from."""
    # Not a tensor, which pickle would move to shared memory.
    torch_state = torch.get_rng_state().numpy()
    return torch_state, random.getstate(), numpy.random.get_state()


def set_random_states(states: tuple[Any, ...]) -> None:
    """Set the states that random_states() has returned, maybe in another process."""
    torch_state, python_state, numpy_state = states
    torch.set_rng_state(torch.from_numpy(torch_state))
    random.setstate(python_state)
    numpy.random.set_state(numpy_state)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadingSettings:
    """How the loading process loads; made in the process that asks for batches."""

    buffer_size: int
    load_indefinitely: bool
    early_preload: bool
    parent: int = field(default_factory=os.getpid)
    random_states: tuple[Any, ...] = field(default_factory=random_states)
    # How the program's processes start, and so the workers of torch's DataLoader.
    start_method: str = field(default_factory=multiprocessing.get_start_method)


class _Stopped(Exception):
    """The process that asks for batches has ended, or needs no more."""


def run(
    connection: Connection,
    source: Iterable[Any],
    settings: LoadingSettings,
    others: Connection | None = None,
) -> None:
    """Load until the other process sends Stop or ends.

    Args:
        connection: To that process.
        source: Yields the batches of one pass.
        settings: How to load.
        others: That process's end of the connection, in a fork of it. Closed here,
            sending fails when that process has ended.
    """
    if others is not None:
        others.close()
    # Ctrl-C is for the program, which then stops this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As torch's own workers: several processes share the cores, and a forked one may
    # not use the threads of its parent.
    torch.set_num_threads(1)
    set_random_states(settings.random_states)
    # multiprocessing has set the method by which this process was started.
    multiprocessing.set_start_method(settings.start_method, force=True)
    with suppress(_Stopped, BrokenPipeError, ConnectionResetError):
        _Fetcher(connection, settings).run(source)


class _Fetcher:
    def __init__(self, connection: Connection, settings: LoadingSettings) -> None:
        self._connection = connection
        self._ahead = settings.load_indefinitely
        # The pass that was asked for last.
        self._wanted = 0 if settings.early_preload else -1
        self._slots = [Slot() for _ in range(settings.buffer_size)]
        self._free = list(range(settings.buffer_size))
        # Readable when that process has ended.
        self._parent = os.pidfd_open(settings.parent)

    def run(self, source: Iterable[Any]) -> None:
        number = 0
        while True:
            # The first batch is loaded at once: it shows whether loading works.
            while number > 0 and not self._is_due(number):
                self._receive()
            number = max(number, self._wanted)
            try:
                is_complete = self._load_pass(number, source)
            except (_Stopped, BrokenPipeError):
                raise
            except Exception:
                self._connection.send(Failure(traceback.format_exc()))
                # Until the other process has taken over all memory, or has ended.
                while True:
                    self._receive()
            number += is_complete

    def _is_due(self, number: int) -> bool:
        """Return whether this pass is wanted, or to be loaded ahead."""
        return number <= self._wanted or (self._ahead and self._wanted >= 0)

    def _load_pass(self, number: int, source: Iterable[Any]) -> bool:
        """Load and send batches; return False if a later pass is wanted instead."""
        for batch in source:
            while self._connection.poll():
                self._receive()
            while not self._free and self._wanted <= number:
                self._receive()
            if self._wanted > number:
                return False
            slot = self._free.pop()
            memory, placed = self._slots[slot].write(batch)
            self._connection.send_bytes(dumps(Batch(number, slot, memory, placed)))
            while self._wanted < 0:
                self._receive()
        self._connection.send(End(number))
        return True

    def _receive(self) -> None:
        ready = wait([self._connection, self._parent])
        if self._connection not in ready:
            raise _Stopped
        try:
            message = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise _Stopped from None
        if isinstance(message, Free):
            self._free.append(message.slot)
        elif isinstance(message, Begin):
            self._wanted = message.number
        elif isinstance(message, Stop):
            raise _Stopped
