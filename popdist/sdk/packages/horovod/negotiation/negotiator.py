"""The calls of one process set on this rank: announced, agreed upon, carried out.

Calls are matched by their names, in whatever order the ranks make them. In each round
all members exchange what they have requested since the last one, and then carry out,
in one order, what all of them have requested. A round is driven by a thread that waits
for a call, or else by one thread beside the program.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from popdist.engine.group import Group
from popdist.engine.handle import Helper
from popdist.engine.spec.operations import Described
from popdist.errors import CollectiveTimeoutError, GroupUnusableError

from ..common.exceptions import HorovodInternalError
from .agreement import JOIN, Agreement, Decision, unnamed
from .call_requests import Kind, Request
from .packets import Packets

# How long to wait for requests of this rank that others wait for, before a round
# without any: first not at all, and then the longer, the more rounds were empty.
_PAUSES = (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005)


class Call:
    """A call of this rank, from its request to its result."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.name = request.name or ""
        self.done = False
        self.error: HorovodInternalError | None = None
        self.result: object = None
        self.begun = monotonic()


# What carries out the decisions of a round, in their order, with this rank's calls.
CarryOut = Callable[[Sequence[tuple[Decision, Call | None]]], None]


class Observer(Protocol):
    """What is told how calls proceed: a timeline."""

    def requested(self, name: str, kind: Kind) -> None: ...
    def began(self, name: str, kind: Kind) -> None: ...
    def ended(self, name: str, kind: Kind) -> None: ...
    def cycled(self) -> None: ...
    def carried_out(
        self, call: Described, began_ns: int, ended_ns: int, succeeded: bool
    ) -> None: ...


class Negotiator:
    """One rank's part in the calls of a process set."""

    def __init__(
        self,
        group: Group,
        ranks: Sequence[int],
        carry_out: CarryOut,
        *,
        timeout: float,
        stall: float,
        cycle: float,
    ) -> None:
        """Make the rank's part.

        Args:
            group: That of the members; only this object makes its calls.
            ranks: What the members are called.
            timeout: After how many seconds a call that other ranks have not made is an
                error, where they make others.
            stall: After how many seconds they are named on stderr.
            cycle: How many seconds to collect requests that nothing waits for, before
                they are announced together.
        """
        self._observer: Observer | None = None
        self._group = group
        self._member = group.rank
        self._agreement = Agreement(ranks)
        self._packets = Packets(group.transport)
        self._carry_out = carry_out
        self._timeout, self._stall, self._cycle = timeout, stall, cycle
        self._pid = os.getpid()
        lock = threading.Lock()
        # Notified after each round; when a call is requested; for the own thread.
        self._progress = threading.Condition(lock)
        self._requested = threading.Condition(lock)
        self._work = threading.Condition(lock)
        self._fresh: list[Call] = []
        self._calls: dict[str, Call] = {}
        self._counts = dict.fromkeys(Kind, 0)
        self._driving = False
        self._empty_rounds = 0
        self._reported = 0.0
        self._failure: HorovodInternalError | None = None
        self._worker: threading.Thread | None = None
        # Whether it waits for calls.
        self._idle = False

    def observe(self, observer: Observer | None) -> None:
        """Tell this of calls from now on; None for nothing."""
        self._observer = observer
        self._group.set_trace(None if observer is None else observer.carried_out)

    def submit(self, call: Call, *, wait: bool = False) -> None:
        """Request a call.

        Args:
            wait: The caller waits for it at once, so no other thread is needed.

        Raises:
            ValueError: A call of this name is under way.
            HorovodInternalError: An earlier error, or shutdown(), allows no more.
        """
        self._check_process()
        kind = call.request.kind
        with self._progress:
            if self._failure is not None:
                raise HorovodInternalError(str(self._failure)) from self._failure
            if not call.name:
                call.name = unnamed(kind, self._counts[kind])
            if call.name in self._calls:
                raise ValueError(
                    f"A call named {call.name!r} is under way on this rank, and two "
                    "of one name cannot be told apart. Wait for it with "
                    "synchronize(), or use another name."
                )
            if call.request.name is None:
                self._counts[kind] += 1
            self._calls[call.name] = call
            self._fresh.append(call)
            if self._observer:
                self._observer.requested(call.name, kind)
            if self._driving:
                self._requested.notify()
            elif not wait:
                self._start_worker()

    def wait(self, call: Call) -> object:
        """Block until a call is carried out, and return its result.

        Raises:
            HorovodInternalError: The ranks' requests differ, a rank has ended, ...
        """
        if not call.done:
            self._check_process()
        while not call.done:
            with self._progress:
                while self._driving and not call.done:
                    self._progress.wait()
                if call.done:
                    break
                self._driving = True
            self._drive()
            if call.done:
                self._hand_over()
        if call.error is not None:
            # A new one for each wait, with the traceback of that.
            raise HorovodInternalError(str(call.error)) from call.error
        return call.result

    def shut_down(self) -> None:
        """Make no more calls; those under way fail on all ranks. Leave the group."""
        with self._progress:
            under_way = bool(self._calls)
        if self._pid == os.getpid():
            if under_way and self._failure is None:
                rank = self._agreement.ranks[self._member]
                self._group.abort(f"Rank {rank} has shut down Horovod.")
            self._fail(HorovodInternalError("Horovod has been shut down on this rank."))
            worker = self._worker
            if worker is not None and worker is not threading.current_thread():
                worker.join()
            self._group.close()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise HorovodInternalError(
                "This process was forked after hvd.init(), and takes no part in "
                "collectives. Make the call in the process that called hvd.init()."
            )

    def _start_worker(self) -> None:
        """Let the thread beside the program drive the rounds. The lock is held."""
        if self._worker is None:
            if sys.is_finalizing():
                raise GroupUnusableError(
                    "Python is ending, and starts no more threads for calls beside "
                    "the program. Call synchronize() before the program ends."
                )
            worker = Helper(target=self._run, name="horovod", daemon=True)
            worker.start()
            self._worker = worker
        if self._idle:
            self._idle = False
            self._work.notify()

    def _hand_over(self) -> None:
        """Leave the calls that are still under way to the thread beside the program."""
        with self._progress:
            if self._calls and not self._driving and self._failure is None:
                self._start_worker()

    def _run(self) -> None:
        while True:
            with self._progress:
                self._await_calls()
                if self._failure is not None:
                    return
                self._driving = True
            self._drive()

    def _await_calls(self) -> None:
        """Return when the own thread is to drive a round. The lock is held."""
        collected = False
        while self._failure is None:
            if self._driving or not self._calls:
                collected = False
                self._idle = True
                self._work.wait()
                self._idle = False
            elif self._fresh and not collected:
                # Gradients follow each other closely. A thread that waits for a call
                # meanwhile drives the round itself.
                collected = True
                self._work.wait(self._cycle)
            else:
                return

    def _drive(self) -> None:
        """Make one round, as the only thread that does."""
        try:
            self._make_round()
        except BaseException as error:
            self._group.give_up("a Horovod call", error)
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._progress:
                self._driving = False
                self._progress.notify_all()

    def _make_round(self) -> None:
        fresh = self._take_fresh()
        message = self._agreement.encode([call.request for call in fresh])
        if self._observer:
            self._observer.cycled()
        decisions = self._agreement.feed(self._packets.exchange(message))
        if not decisions:
            return
        self._empty_rounds = 0
        with self._progress:
            pairs = [(one, self._calls.get(one.name)) for one in decisions]
            for decision, call in pairs:
                if call is None and decision.request.name is None:
                    # This rank has joined; the others have counted the call.
                    self._counts[decision.request.kind] += 1
        for decision, call in pairs:
            if call is not None and decision.error is not None:
                call.error = HorovodInternalError(decision.error)
        if self._observer:
            for _, call in pairs:
                if call is not None:
                    self._observer.began(call.name, call.request.kind)
        self._carry_out([pair for pair in pairs if pair[0].error is None])
        with self._progress:
            for _, call in pairs:
                if call is not None:
                    self._end(call)

    def _end(self, call: Call) -> None:
        self._calls.pop(call.name, None)
        call.done = True
        if self._observer:
            self._observer.ended(call.name, call.request.kind)

    def _take_fresh(self) -> list[Call]:
        """Return what this rank has requested since the last round.

        Where it is waited for, and has nothing new, it waits a moment: rounds of
        members that all wait for each other would follow each other without end.
        """
        with self._progress:
            if not self._fresh and self._agreement.lacks(self._member):
                pause = _PAUSES[min(self._empty_rounds, len(_PAUSES) - 1)]
                self._empty_rounds += 1
                if pause:
                    self._requested.wait(pause)
                if not self._fresh:
                    self._check_age()
            fresh, self._fresh = self._fresh, []
        if fresh:
            self._empty_rounds = 0
        return fresh

    def _check_age(self) -> None:
        """Name the ranks that have not made the oldest call of this one, if it is old.

        Raises:
            CollectiveTimeoutError: It has become too old.
        """
        oldest = next((c for c in self._calls.values() if c.name != JOIN), None)
        if oldest is None:
            return
        age = monotonic() - oldest.begun
        if age < min(self._stall, self._timeout):
            return
        missing = ", ".join(map(str, self._agreement.missing(oldest.name)))
        message = (
            f"rank {self._agreement.ranks[self._member]} has waited {age:.0f} s in "
            f"{oldest.request.kind.text} {oldest.name!r} for ranks {missing}, which "
            "make other calls."
        )
        if age >= self._timeout:
            raise CollectiveTimeoutError(message[0].upper() + message[1:])
        if monotonic() - self._reported >= self._stall:
            self._reported = monotonic()
            print(f"horovod: {message}", file=sys.stderr, flush=True)

    def _fail(self, error: BaseException) -> None:
        """Let all calls under way, and all that follow, fail with this error."""
        failure = HorovodInternalError(str(error) or type(error).__name__)
        failure.__cause__ = error
        with self._progress:
            if self._failure is None:
                self._failure = failure
            for call in list(self._calls.values()):
                call.error = failure
                self._end(call)
            self._fresh.clear()
            self._progress.notify_all()
            self._work.notify_all()
            self._requested.notify_all()
