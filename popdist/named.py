"""The order of named collective calls: member 0's order is everybody's.

A group's calls must be in one order on all members, but threads come as they like.
So member 0 makes its calls in the order in which its threads come, and on each other
member a call waits until member 0's next one has its name. One of the waiting threads
watches member 0, and tells the rest.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from popdist.engine.codes import number_of
from popdist.engine.group import Group
from popdist.engine.work import Handle
from popdist.errors import MismatchError, PopdistError
from popdist.session import STATE

T = TypeVar("T")

# A call to make, of a group, with a name for it.
Action = Callable[[Group, str | None], T]

# Members know each other's calls by numbers. Before the first call with a new name,
# member 0 tells the others what it is, in a call of this name, for errors to say.
_INTRODUCTION = "\0introduction"
_INTRODUCES = number_of(_INTRODUCTION)
_NUMBER_BYTES, _TEXT_BYTES = 8, 120
# All members forget all names after so many, so that these take no more memory.
_MOST_NAMES = 4096

# How often to look whether threads that could make the awaited call are left.
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, eq=False, slots=True)
class _Ticket:
    """A call that a thread of this process has come to."""

    name: str | None
    number: int


class Order:
    """The named calls of one group, which makes no others."""

    def __init__(self, group: Group, instances: Sequence[int]) -> None:
        self.group = group
        self._instances = tuple(instances)
        self._condition = threading.Condition()
        # In the order in which they came; a ticket leaves when its call begins.
        self._queue: list[_Ticket] = []
        self._busy = False
        self._watching = False
        # The number of member 0's next call, once a watching thread has seen it.
        self._next: int | None = None
        self._names: dict[int, str] = {}
        # The threads that can come to no other call before these make progress.
        self._blocked: set[int] = set()

    def call(self, name: str | None, action: Action[T]) -> T:
        """Make a call when its turn comes, and return its result."""
        ticket = _Ticket(name, number_of(name))
        with self._condition:
            self._queue.append(ticket)
            self._condition.notify_all()
        return self._run(ticket, action)

    def start(self, name: str | None, action: Action[T]) -> Handle[T]:
        """Make a call when its turn comes, in a thread of its own."""
        ticket = _Ticket(name, number_of(name))
        handle: _NamedHandle[T] = _NamedHandle(self)
        thread = threading.Thread(
            target=handle.run,
            args=(lambda: self._run(ticket, action),),
            name=f"popdist {name}",
            daemon=True,
        )
        with self._condition:
            thread.start()
            self._queue.append(ticket)
            self._condition.notify_all()
        return handle

    def wait(self, event: threading.Event) -> None:
        """Wait for a call that runs in another thread."""
        with self._condition:
            self._blocked.add(threading.get_ident())
        try:
            event.wait()
        finally:
            with self._condition:
                self._blocked.discard(threading.get_ident())

    def _run(self, ticket: _Ticket, action: Action[T]) -> T:
        try:
            self._take_turn(ticket)
            try:
                if self.group.rank == 0:
                    self._introduce(ticket)
                return action(self.group, ticket.name)
            finally:
                self._end_turn()
        except PopdistError as error:
            # The engine knows numbers only.
            names = {**self._names, _INTRODUCES: f"{_shown(ticket.name)}, before it"}
            error.args = (_with_names(str(error), names),)
            raise

    def _take_turn(self, ticket: _Ticket) -> None:
        with self._condition:
            self._blocked.add(threading.get_ident())
            try:
                self._wait_for_turn(ticket)
                self._busy = True
            finally:
                self._queue.remove(ticket)
                self._blocked.discard(threading.get_ident())
                self._condition.notify_all()

    def _end_turn(self) -> None:
        with self._condition:
            self._busy = False
            self._next = None
            self._condition.notify_all()

    def _wait_for_turn(self, ticket: _Ticket) -> None:
        while not self._is_turn_of(ticket):
            if self.group.rank == 0 or self._busy or self._watching:
                self._condition.wait()
            elif self._next is None:
                self._watch()
            elif any(other.number == self._next for other in self._queue):
                self._condition.wait()
            else:
                self._check_that_it_can_come()
                self._condition.wait(_LOOK_SECONDS)
                # Watching once more also tells whether the group has failed since.
                self._next = None

    def _is_turn_of(self, ticket: _Ticket) -> bool:
        if self._busy or self._watching:
            return False
        if self.group.rank == 0:
            return self._queue[0] is ticket
        if ticket.number != self._next:
            return False
        return ticket is next(t for t in self._queue if t.number == self._next)

    def _watch(self) -> None:
        """See which call member 0 makes next. The lock is free meanwhile."""
        self._watching = True
        self._condition.release()
        number = None
        try:
            while (number := self.group.peek()) == _INTRODUCES:
                self._be_introduced()
        finally:
            self._condition.acquire()
            self._watching = False
            self._next = number
            self._condition.notify_all()

    def _check_that_it_can_come(self) -> None:
        """Fail, on all members, if no thread here is left for member 0's call."""
        if {thread.ident for thread in threading.enumerate()} - self._blocked:
            return
        theirs = self._names.get(self._next or 0, "a call without a name")
        mine = ", ".join(_shown(ticket.name) for ticket in self._queue[:3])
        message = (
            "Named collectives were called in different orders: instance "
            f"{self._instances[0]} is in {theirs}, but instance "
            f"{self._instances[self.group.rank]} waits in {mine}, with all its "
            "threads. Call them in one order, from threads, or with async_op=True."
        )
        self.group.abort(message)
        raise MismatchError(message)

    def _introduce(self, ticket: _Ticket) -> None:
        if ticket.number and ticket.number not in self._names:
            text = _shown(ticket.name)
            told = ticket.number.to_bytes(_NUMBER_BYTES, "little") + text.encode()
            packet = np.zeros(_NUMBER_BYTES + _TEXT_BYTES, np.uint8)
            packet[: len(told)] = np.frombuffer(told, np.uint8)
            self.group.broadcast(packet, 0, out=packet, name=_INTRODUCTION)
            self._remember(ticket.number, text)

    def _be_introduced(self) -> None:
        packet = np.zeros(_NUMBER_BYTES + _TEXT_BYTES, np.uint8)
        self.group.broadcast(packet, 0, out=packet, name=_INTRODUCTION)
        number, text = packet[:_NUMBER_BYTES], packet[_NUMBER_BYTES:]
        self._remember(
            int.from_bytes(number.tobytes(), "little"),
            text.tobytes().rstrip(b"\0").decode(),
        )

    def _remember(self, number: int, text: str) -> None:
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        self._names[number] = text


class _NamedHandle(Handle[T]):
    """A named call that may still be under way."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def run(self, action: Callable[[], T]) -> None:
        self._run(action)

    def wait(self) -> T:
        self._order.wait(self._done)
        return self.result()


def order_of(participants: tuple[int, ...]) -> Order:
    """Return the order of named calls among these instances.

    The first call for the same participants is collective: all of them must make
    it, and it blocks until they have.
    """
    return STATE.once(
        ("order", participants),
        lambda: Order(STATE.group("named", participants), participants),
    )


def _shown(name: str | None) -> str:
    """Return a name as errors show it: in ASCII, and not too long."""
    if name is None:
        return "a call without a name"
    shown = ascii(name)
    return shown if len(shown) <= 100 else f"{shown[:96]}...'"


def _with_names(message: str, names: Mapping[int, str]) -> str:
    """Replace the numbers of names in a message by what they stand for."""
    return re.sub(
        "[0-9a-f]{16}", lambda found: names.get(int(found[0], 16), found[0]), message
    )
