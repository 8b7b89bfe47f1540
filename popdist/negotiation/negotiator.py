"""The calls of one group that are matched by their names, as one member sees them.

Calls are matched by their names, in whatever order the members make them. In each round
all members exchange their new requests, and then carry out, in one order, the calls
that all members have requested. A round is driven by a thread that waits for a call, or
else by one thread beside the program.
"""

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from itertools import chain
from math import inf
from typing import Any

from popdist.engine.group import Group
from popdist.engine.handle import Handle, Helper, check_interpreter, check_thread
from popdist.errors import (
    CollectiveAbortedError,
    GroupUnusableError,
    MismatchError,
    PopdistError,
)
from popdist.negotiation.agreement import JOIN, Agreement, Decision, unnamed
from popdist.negotiation.call_requests import Kind
from popdist.negotiation.calls import Call, CarryOut, Observer
from popdist.negotiation.packets import Packets
from popdist.negotiation.stall_watch import StallWatch

# How long to wait for requests of this member that others wait for, before a round
# without any: first not at all, and then the longer, the more rounds were empty.
_PAUSES = (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005)
# How long the thread beside the program waits for further calls before it ends.
_IDLE_SECONDS = 0.5

# Ends the requests in a message. None contains it.
_END_OF_REQUESTS = b"\n"


class Negotiator:
    """One member's part in the calls of a group that are matched by their names."""

    def __init__(
        self,
        group: Group,
        agreement: Agreement,
        carry_out: CarryOut,
        *,
        timeout: float,
        stall: float,
        deadlock: float = inf,
        cycle: float = 0.0,
    ) -> None:
        """Make the member's part.

        Args:
            group: The members' group; only this object and `carry_out` make its calls.
            agreement: A new one, of the same members.
            timeout: After how many seconds a call is an error, if other members make
                other calls instead.
            stall: After how many seconds these members are named on stderr.
            deadlock: After how many seconds it is an error that all calling threads of
                all members wait in different calls.
            cycle: How many seconds to collect requests that nothing waits for, before
                they are announced together.
        """
        self._observer: Observer | None = None
        self._group = group
        self._member = group.rank
        self._agreement = agreement
        self._packets = Packets(group)
        self._carry_out = carry_out
        self._watch = StallWatch(agreement, group.rank, timeout, stall, deadlock)
        self._cycle = cycle
        self._pid = os.getpid()
        # Held while calls are requested. A signal's handler may request one, too.
        self.lock = threading.RLock()
        # Notified after each round; when a call is requested; for the own thread.
        self._progress = threading.Condition(self.lock)
        self._requested = threading.Condition(self.lock)
        self._work = threading.Condition(self.lock)
        # Calls that are not announced yet; all that are under way, by name; and those
        # that the running round carries out.
        self._fresh: list[Call] = []
        self._calls: dict[str, list[Call]] = {}
        self._decided: list[Call] = []
        self._counts = dict.fromkeys(Kind, 0)
        self._driver: threading.Thread | None = None
        # The threads that have requested calls, and the threads in a wait for one.
        self._callers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._blocked: set[threading.Thread] = set()
        self._empty_rounds = 0
        self._closed = False
        self._worker: threading.Thread | None = None

    def observe(self, observer: Observer | None) -> None:
        """Tell this of calls from now on; None for nothing."""
        self._observer = observer
        self._group.set_trace(None if observer is None else observer.carried_out)

    def is_under_way(self, name: str | None) -> bool:
        """Return whether a call of this name is requested, and not over."""
        return name in self._calls

    def submit(self, call: Call, *, wait: bool = False) -> Handle[Any]:
        """Request a call, and return its handle.

        Args:
            wait: The caller waits for it at once, so no other thread is needed.

        Raises:
            GroupUnusableError: The negotiator is shut down, or Python is ending.
            RuntimeError: The caller is a callback that would wait for itself.
        """
        if wait:
            self.check_caller()
        else:
            check_interpreter()
        try:
            with self.lock:
                if not (wait or self._driver or self._blocked):
                    self._start_worker()
                self._callers.add(threading.current_thread())
                self._add(call)
                self._requested.notify()
        except BaseException as error:
            if not isinstance(error, Exception):
                # Ctrl-C: the others may wait for a call that is never made.
                self._group.give_up(call.request.title(call.name), error)
            raise
        return call.handle

    def _add(self, call: Call) -> None:
        if self._closed:
            raise GroupUnusableError(
                "This group has been shut down, and takes no more calls. Make them "
                "earlier, or create a new group."
            )
        kind = call.request.kind
        if call.request.name is None:
            call.name = unnamed(kind, self._counts[kind])
            self._counts[kind] += 1
        call.handle = Handle(
            partial(self._group.give_up, call.request.title(call.name))
        )
        call.handle.scheduler = self
        self._calls.setdefault(call.name, []).append(call)
        self._fresh.append(call)
        if self._observer:
            self._observer.requested(call.name, kind)

    def check_caller(self) -> None:
        """Raise RuntimeError in the thread that makes a round: in a callback."""
        check_thread(self._driver)

    def hurry(self) -> None:
        """Do nothing: calls that no thread waits for are made at once, too."""

    def make_until(self, handle: Handle[Any]) -> None:
        """Wait for a call, and drive rounds where no other thread does."""
        thread = threading.current_thread()
        # A signal's handler may wait in a thread that waits.
        is_outermost = thread not in self._blocked
        self._blocked.add(thread)
        try:
            while not handle.test():
                if self._become_driver(thread, handle):
                    self._drive()
        finally:
            if is_outermost:
                self._blocked.discard(thread)
            with self.lock:
                if self._driver is thread:
                    # It was interrupted before its round.
                    self._driver = None
                    self._progress.notify_all()
                if self._calls and not (self._driver or self._blocked):
                    self._start_worker()

    def _become_driver(self, thread: threading.Thread, handle: Handle[Any]) -> bool:
        """Wait until no other thread drives a round; return whether this one is to."""
        with self.lock:
            while self._driver and not handle.test():
                self._progress.wait()
            if not handle.test():
                self._driver = thread
            return self._driver is thread

    def shut_down(self, message: str) -> None:
        """Make no more calls. Leave the group.

        Args:
            message: With it the calls that are under way fail on all members.
        """
        if self._pid != os.getpid():
            return
        with self.lock:
            self._closed = True
            under_way = bool(self._calls)
            self._work.notify()
        if under_way:
            self._group.abort(message)
        self._fail(CollectiveAbortedError(message))
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join()
        self._group.close()

    def _start_worker(self) -> None:
        """Let the thread beside the program drive the rounds. The lock is held."""
        # In a forked child, its parent's is not alive.
        if self._worker is None or not self._worker.is_alive():
            worker = Helper(target=self._run, name="popdist negotiation", daemon=True)
            worker.start()
            self._worker = worker
        self._work.notify()

    def _run(self) -> None:
        while self._await_calls():
            self._drive()

    def _await_calls(self) -> bool:
        """Wait until the own thread is to drive a round; return False if it is to end.

        Gradients follow each other closely, so it collects requests for a moment. A
        thread that waits for a call meanwhile drives the round itself.
        """
        collected = self._cycle == 0
        with self.lock:
            while not self._closed:
                if self._driver or self._blocked or not self._calls:
                    collected = self._cycle == 0
                    woken = self._work.wait(_IDLE_SECONDS)
                    if not (woken or self._calls):
                        break
                elif self._fresh and not collected:
                    collected = True
                    self._work.wait(self._cycle)
                else:
                    self._driver = threading.current_thread()
                    return True
            self._worker = None
            return False

    def _drive(self) -> None:
        """Make one round, as the only thread that does."""
        try:
            self._make_round()
            # shut_down() may replace the list meanwhile.
            decided = self._decided
            while decided:
                end = self._finish(decided[0])
                # See Handle.carry_out().
                del decided[0]
                end()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self.lock:
                self._driver = None
                self._progress.notify_all()

    def _make_round(self) -> None:
        """Exchange requests, and carry out what all members have requested."""
        fresh, blocked = self._take_fresh()
        message = self._agreement.encode([call.request for call in fresh], blocked)
        if len(fresh) == 1:
            message += _END_OF_REQUESTS + fresh[0].payload
        if self._observer:
            self._observer.cycled()
        messages = self._packets.exchange(message)
        parts = [received.partition(_END_OF_REQUESTS) for received in messages]
        decisions = self._agreement.feed([requests for requests, _, _ in parts])
        if not decisions:
            deadlock = self._watch.check_deadlock()
            if deadlock is not None:
                self._group.end_with_mismatch(deadlock)
                raise MismatchError(deadlock)
            return
        self._empty_rounds = 0
        self._watch.clear_deadlock()
        with self.lock:
            pairs = [(decision, self._call_of(decision)) for decision in decisions]
        for decision, call in pairs:
            if call is not None and decision.error is not None:
                call.error = MismatchError(decision.error)
        if self._observer:
            for call in self._decided:
                self._observer.began(call.name, call.request.kind)
        if self._agreement.is_unanimous and len(fresh) == 1:
            fresh[0].payloads = [payload for _, _, payload in parts]
        self._carry_out([pair for pair in pairs if pair[0].error is None])

    def _call_of(self, decision: Decision) -> Call | None:
        """Take the call of this member that is decided from those under way."""
        calls = self._calls.get(decision.name)
        if calls is None:
            if decision.request.name is None:
                # This member has joined; the others have counted the call.
                self._counts[decision.request.kind] += 1
            return None
        call = calls.pop(0)
        if not calls:
            del self._calls[decision.name]
        self._decided.append(call)
        return call

    def _finish(self, call: Call) -> Callable[[], None]:
        """Hand a call's result on, and return the function that ends the call."""
        if self._observer:
            self._observer.ended(call.name, call.request.kind)
        return call.handle.carry_out(call.outcome)

    def _take_fresh(self) -> tuple[list[Call], bool]:
        """Return new requests, and whether none can come before a call is over.

        Where this member is waited for, and has nothing new, it waits a moment: rounds
        of members that all wait for each other would follow each other without end.
        """
        with self.lock:
            if not self._fresh and self._agreement.lacks(self._member):
                pause = _PAUSES[min(self._empty_rounds, len(_PAUSES) - 1)]
                self._empty_rounds += 1
                if pause:
                    self._requested.wait(pause)
            fresh, self._fresh = self._fresh, []
            blocked = not fresh and all(
                thread in self._blocked or not thread.is_alive()
                for thread in (threading.main_thread(), *self._callers)
            )
        if fresh:
            self._empty_rounds = 0
        else:
            self._watch.check_age(self._oldest_call())
        return fresh, blocked

    def _oldest_call(self) -> Call | None:
        """Return the call of this member that has waited for the longest time."""
        with self.lock:
            calls = (queue[0] for name, queue in self._calls.items() if name != JOIN)
            return next(calls, None)

    def _fail(self, error: BaseException) -> None:
        """Let all calls under way fail, here and on all other members."""
        with self.lock:
            calls = [*self._decided, *chain.from_iterable(self._calls.values())]
            self._decided, self._calls, self._fresh = [], {}, []
            self._progress.notify_all()
        if calls:
            self._group.give_up(calls[0].request.title(calls[0].name), error)
        if not isinstance(error, PopdistError):
            cause = error
            error = CollectiveAbortedError(str(cause) or type(cause).__name__)
            error.__cause__ = cause
        for call in calls:
            if not call.handle.test():
                call.error = error
                self._finish(call)()
