"""The order of named collective calls: member 0's order is everybody's.

A group's calls must be in one order on all members, but threads come as they like.
So member 0 makes its calls in the order in which its threads come, and on each other
member a call waits until member 0's next one has its name. One of the waiting threads
watches member 0, and tells the rest.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from popdist.callers import Callers
from popdist.engine.codes import number_of
from popdist.engine.group import Group
from popdist.engine.work import Handle
from popdist.errors import MismatchError, PopdistError
from popdist.names import INTRODUCES, Names, shown
from popdist.session import STATE

T = TypeVar("T")

# A call to make, of a group, with a name for it.
Action = Callable[[Group, str | None], T]

# How often to look whether threads that could make the awaited call are left.
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, eq=False, slots=True)
class _Ticket:
    """A call that a thread of this process has come to."""

    name: str | None
    number: int


class Order:
    """The named calls of one group, which makes no others."""

    def __init__(self, group: Group, instances: Sequence[int], stall: float) -> None:
        """Make the order of a group's calls.

        Args:
            instances: What the members are called.
            stall: For how many seconds threads that have made no call yet are given
                the chance to make the awaited one.
        """
        self.group = group
        self._instances = tuple(instances)
        self._condition = threading.Condition()
        # In the order in which they came; a ticket leaves when its call begins.
        self._queue: list[_Ticket] = []
        self._busy = False
        self._watching = False
        # The number of member 0's next call, once a watching thread has seen it.
        self._next: int | None = None
        self._names = Names(group)
        self._callers = Callers()
        self._stall = stall
        # Since when no thread is left that the awaited call is to be expected of.
        self._stuck: float | None = None

    def call(self, name: str | None, action: Action[T]) -> T:
        """Make a call when its turn comes, and return its result."""
        ticket = _Ticket(name, number_of(name))
        with self._condition:
            self._come(ticket)
        return self._run(ticket, action)

    def start(self, name: str | None, action: Action[T]) -> Handle[T]:
        """Make a call when its turn comes, in a thread of its own."""
        ticket = _Ticket(name, number_of(name))
        handle: _NamedHandle[T] = _NamedHandle(self, name)
        thread = threading.Thread(
            target=handle.run,
            args=(lambda: self._run(ticket, action),),
            name=f"popdist {name}",
            daemon=True,
        )
        with self._condition:
            thread.start()
            self._come(ticket)
        return handle

    @contextmanager
    def waiting(self, event: threading.Event) -> Iterator[None]:
        """Say that this thread waits for a call that runs in another one."""
        with self._callers.held(self._condition, event):
            yield

    def _come(self, ticket: _Ticket) -> None:
        self._callers.come()
        self._queue.append(ticket)
        self._condition.notify_all()

    def _run(self, ticket: _Ticket, action: Action[T]) -> T:
        try:
            self._take_turn(ticket)
            try:
                if self.group.rank == 0:
                    self._names.introduce(ticket.name, ticket.number)
                return action(self.group, ticket.name)
            finally:
                self._end_turn()
        except PopdistError as error:
            # The engine knows numbers only.
            error.args = (self._names.put_into(str(error), ticket.name),)
            raise

    def _take_turn(self, ticket: _Ticket) -> None:
        with self._condition, self._callers.held(self._condition):
            try:
                self._wait_for_turn(ticket)
                self._busy = True
                self._stuck = None
            except PopdistError:
                raise
            except BaseException as error:
                # Ctrl-C: the others would wait for a call that nobody makes.
                self.group.give_up(shown(ticket.name), error)
                raise
            finally:
                self._queue.remove(ticket)
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
            while (number := self.group.peek()) == INTRODUCES:
                self._names.be_told()
        finally:
            self._condition.acquire()
            self._watching = False
            self._next = number
            self._condition.notify_all()

    def _check_that_it_can_come(self) -> None:
        """Fail, on all members, if no thread here is left for member 0's call."""
        threads = self._callers.free()
        if any(map(self._callers.makes_calls, threads)):
            self._stuck = None
            return
        free = threads or self._callers.strangers()
        self._stuck = self._stuck or monotonic()
        if free and monotonic() - self._stuck < self._stall:
            return
        rest = f"and has for {self._stall:g} s, " if free else ""
        rest += "with all its threads" + (" that make such calls" if free else "")
        theirs = self._names.of(self._next or 0)
        mine = ", ".join(shown(ticket.name) for ticket in self._queue[:3])
        message = (
            "Named collectives were called in different orders: instance "
            f"{self._instances[0]} is in {theirs}, but instance "
            f"{self._instances[self.group.rank]} waits in {mine}, {rest}. Call them in "
            "one order, from threads, or with async_op=True."
        )
        self.group.abort(message)
        raise MismatchError(message)


class _NamedHandle(Handle[T]):
    """A named call that may still be under way."""

    def __init__(self, order: Order, name: str | None) -> None:
        super().__init__(lambda error: order.group.give_up(shown(name), error))
        self._order = order

    def run(self, action: Callable[[], T]) -> None:
        self._run(action)

    def wait(self) -> T:
        with self._order.waiting(self._done):
            return super().wait()


def order_of(participants: tuple[int, ...]) -> Order:
    """Return the order of named calls among these instances.

    The first call for the same participants is collective: all of them must make
    it, and it blocks until they have.
    """
    return STATE.once(
        ("order", participants),
        lambda: Order(
            STATE.group("named", participants),
            participants,
            STATE.job.settings.stall,
        ),
    )
