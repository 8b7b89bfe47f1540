"""The order of named collective calls: all members follow member 0's.

A group's calls must be in one order on all members, but threads request them in any
order. So member 0 makes its calls in the order in which its threads request them, and
on each other member a call waits until member 0's next one has its name. One of the
waiting threads watches member 0, and notifies the rest. All calls with async_op=True
wait in one thread, which ends when none of them waits.
"""

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import TypeVar

from popdist.engine.group import Group
from popdist.engine.handle import Handle, Helper, check_interpreter, check_thread
from popdist.engine.spec.operations import number_of
from popdist.errors import MismatchError, PopdistError
from popdist.named.names import INTRODUCES, Names, shown
from popdist.named.threads import Callers
from popdist.session import STATE

T = TypeVar("T")

# A call to make, of a group, with a name for it.
Action = Callable[[Group, str | None], T]

# How often to look whether threads that could make the awaited call are left.
_LOOK_SECONDS = 0.1
# A thread that has just been started is on none of Python's lists yet.
_START_S = 0.25


@dataclass(frozen=True, eq=False, slots=True)
class _Ticket:
    """A call that a thread of this process waits to make."""

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
        self._queue: OrderedDict[_Ticket, None] = OrderedDict()
        # The same by their numbers, which are no keys where none waits.
        self._numbered: defaultdict[int, deque[_Ticket]] = defaultdict(deque)
        # The call that is under way.
        self._running: _Ticket | None = None
        # What is to be done for those in the queue that run beside the program, and
        # whether there is a thread for them.
        self._deferred: OrderedDict[_Ticket, Callable[[_Ticket], None]] = OrderedDict()
        self._worker: threading.Thread | None = None
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
        check_thread(self._worker)
        ticket = _Ticket(name, number_of(name))
        return self._run(ticket, action, come=True)

    def start(self, name: str | None, action: Action[T]) -> Handle[T]:
        """Make a call when its turn comes, beside the program."""
        ticket = _Ticket(name, number_of(name))
        handle: _NamedHandle[T] = _NamedHandle(self, name)
        with self._condition:
            # It cannot begin before the lock is free.
            self._start_worker()
            handle.thread = self._worker
            self._deferred[ticket] = lambda ticket: handle.run(
                lambda: self._run(ticket, action, come=False)
            )
            self._come(ticket)
        return handle

    def _start_worker(self) -> None:
        check_interpreter()
        # In a forked child, its parent's is not alive.
        if self._worker is None or not self._worker.is_alive():
            worker = Helper(target=self._work, name="popdist names", daemon=True)
            worker.start()
            self._worker = worker

    def _work(self) -> None:
        while True:
            with self._condition:
                if not self._deferred:
                    self._worker = None
                    return
                ticket = self._await_deferred()
                make = self._deferred.pop(ticket)
            make(ticket)

    def _await_deferred(self) -> _Ticket:
        """Return the call whose turn it is, or one that finds out why none comes."""
        try:
            return self._wait_for_turn(lambda next_one: next_one in self._deferred)
        except BaseException as error:
            # The others would wait for calls that are never made.
            if not isinstance(error, PopdistError):
                self.group.give_up("named calls", error)
            # The oldest one meets the same error, and its handle raises it.
            return next(iter(self._deferred))

    @contextmanager
    def waiting(self, event: threading.Event) -> Iterator[None]:
        """Mark this thread as waiting for a call that another thread makes."""
        with self._callers.held(self._condition, event):
            yield

    def _come(self, ticket: _Ticket) -> None:
        self._callers.come()
        self._queue[ticket] = None
        self._numbered[ticket.number].append(ticket)
        self._condition.notify_all()

    def _leave(self, ticket: _Ticket) -> None:
        """Leave the queue, in which the ticket is not if its thread was interrupted."""
        self._queue.pop(ticket, None)
        waiting = self._numbered[ticket.number]
        if ticket in waiting:
            waiting.remove(ticket)
        if not waiting:
            del self._numbered[ticket.number]
        self._condition.notify_all()

    def _run(self, ticket: _Ticket, action: Action[T], *, come: bool) -> T:
        try:
            try:
                self._take_turn(ticket, come)
                if self.group.rank == 0:
                    self._names.introduce(ticket.name, ticket.number)
                return action(self.group, ticket.name)
            finally:
                self._end_turn(ticket)
        except PopdistError as error:
            # The engine knows numbers only.
            error.args = (self._names.put_into(str(error), ticket.name),)
            raise

    def _take_turn(self, ticket: _Ticket, come: bool) -> None:
        with self._condition, self._callers.held(self._condition):
            try:
                # Here, so that whatever interrupts this thread takes the ticket back.
                if come:
                    self._come(ticket)
                self._wait_for_turn(lambda next_one: next_one is ticket)
                self._running = ticket
                self._stuck = None
            except PopdistError:
                raise
            except BaseException as error:
                # Ctrl-C: the others would wait for a call that is never made.
                self.group.give_up(shown(ticket.name), error)
                raise
            finally:
                self._leave(ticket)

    def _end_turn(self, ticket: _Ticket) -> None:
        with self._condition:
            if self._running is ticket:
                self._running = None
                self._next = None
                self._condition.notify_all()

    def _wait_for_turn(self, is_mine: Callable[[_Ticket], bool]) -> _Ticket:
        """Return the ticket whose turn it is once it is one of the caller's."""
        while (ticket := self._in_turn()) is None or not is_mine(ticket):
            if self.group.rank == 0 or self._running or self._watching:
                self._condition.wait()
            elif self._next is None:
                self._watch()
            elif ticket is not None:
                self._condition.wait()
            else:
                self._check_that_it_can_come()
                self._condition.wait(_LOOK_SECONDS)
                # Watching once more also detects that the group has failed since.
                self._next = None
        return ticket

    def _in_turn(self) -> _Ticket | None:
        """Return the ticket whose call comes next, if that is known and here."""
        if self._running or self._watching:
            return None
        if self.group.rank == 0:
            return next(iter(self._queue), None)
        if self._next is None or self._next not in self._numbered:
            return None
        return self._numbered[self._next][0]

    def _watch(self) -> None:
        """See which call member 0 makes next. The lock is free meanwhile."""
        self._watching = True
        self._condition.release()
        number = None
        try:
            while (number := self.group.peek()) == INTRODUCES:
                self._names.receive_introduction()
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
        free = threads or self._callers.has_foreign_threads()
        self._stuck = self._stuck or monotonic()
        if monotonic() - self._stuck < (self._stall if free else _START_S):
            return
        rest = f"and has for {self._stall:g} s, " if free else ""
        rest += "with all its threads" + (" that make such calls" if free else "")
        theirs = self._names.of(self._next or 0)
        mine = ", ".join(shown(ticket.name) for ticket in islice(self._queue, 3))
        message = (
            "Named collectives were called in different orders: instance "
            f"{self._instances[0]} is in {theirs}, but instance "
            f"{self._instances[self.group.rank]} waits in {mine}, {rest}. Call them in "
            "one order, from threads, or with async_op=True."
        )
        self.group.end_with_mismatch(message)
        raise MismatchError(message)


class _NamedHandle(Handle[T]):
    """A named call that may still be under way."""

    def __init__(self, order: Order, name: str | None) -> None:
        super().__init__(lambda error: order.group.give_up(shown(name), error))
        self._order = order

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
