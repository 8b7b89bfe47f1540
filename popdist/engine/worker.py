"""Makes a group's calls beside the program, in a thread or in those that wait."""

import threading
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from popdist.engine import _core
from popdist.engine.handle import Handle, Helper, check_interpreter, check_thread

T = TypeVar("T")

# How long a deferred call waits for a thread that waits for it.
_DEFER_SECONDS = 0.002
# After how many looks at an empty queue the thread sleeps until it is woken.
_IDLE_LOOKS = 50


class _Call(NamedTuple):
    handle: Handle[Any]
    action: Callable[[], Any]


class Worker:
    """Makes the calls of one group, one after the other.

    Its thread, which is started when first needed, makes them at once. Deferred calls
    are for programs that soon wait for them: then the waiting thread makes them, and no
    other thread has to be woken. After 2 ms the worker's thread makes deferred calls,
    too: other members wait for them, and the program may wait for those members. The
    core defers calls by itself. They all come before the worker's.
    """

    def __init__(
        self, count: Callable[[int], int], comm: _core.Comm | None = None
    ) -> None:
        """Make a worker.

        Args:
            count: Told when there are more calls, or fewer.
            comm: May have deferred calls.
        """
        # How many calls wait or run. While it is 0, calls need no worker.
        self.pending = 0
        self._count, self._comm = count, comm
        # Guards all that follows, and wakes the thread.
        self._changed = threading.Condition()
        # None lets the thread end.
        self._queue: deque[_Call | None] = deque()
        # The time at which the thread begins to make the queued calls.
        self._due = inf
        # Whether the thread looks at the queue every so often, or must be woken, and at
        # how many empty ones.
        self._looking = False
        self._looks = 0
        self._thread: threading.Thread | None = None
        # The thread in which a call runs.
        self._making: threading.Thread | None = None

    def submit(
        self,
        action: Callable[[], T],
        give_up: Callable[[BaseException], None],
        *,
        deferred: bool = False,
    ) -> Handle[T]:
        """Run the action after all that were submitted before it.

        Args:
            give_up: Called if a wait for it is interrupted.
            deferred: Whether the caller soon waits for the handle.
        """
        check_interpreter()
        handle: Handle[T] = Handle(give_up)
        handle.scheduler = self
        with self._changed:
            self._start()
            self._append(_Call(handle, action))
            if not deferred:
                self._wake(0.0)
            elif self._due == inf:
                self._due = monotonic() + _DEFER_SECONDS
                if not self._looking:
                    self._wake(self._due)
        return handle

    def watch(self) -> None:
        """Make calls that the core defers, if no other thread does within 2 ms."""
        check_interpreter()
        with self._changed:
            self._start()
            self._looks = _IDLE_LOOKS
            self._look(True)
            self._changed.notify()

    def make_until(self, handle: Handle[Any]) -> None:
        """Make the calls up to this one in this thread, if they are deferred."""
        while not handle.test():
            call = None
            try:
                with self._changed:
                    call = self._begin_deferred()
                if call is None:
                    return
                call.handle.run(call.action)
            finally:
                if call is not None:
                    self._end_call()

    def hurry(self) -> None:
        """Make all deferred calls now."""
        with self._changed:
            if self._queue:
                self._wake(0.0)

    def check_caller(self) -> None:
        """Raise RuntimeError if the caller is the thread that it would wait for."""
        check_thread(self._thread)
        check_thread(self._making)

    def close(self) -> None:
        """Let the thread end once it has done what was submitted."""
        # Cleared even if the join is interrupted: later calls need a new thread.
        thread, self._thread = self._thread, None
        here = threading.current_thread()
        if thread is not None:
            self._end()
            if here not in (thread, self._making):
                # A signal that comes just before a wait without a limit is handled
                # only after it.
                while thread.is_alive():
                    thread.join(timeout=0.2)

    def stop(self) -> None:
        """Let the thread end, without waiting for it: no call is under way."""
        if self._thread is not None:
            self._end()

    def _start(self) -> None:
        if self._thread is None:
            thread = Helper(target=self._work, name="popdist", daemon=True)
            # May fail: calls are counted only once a thread makes them.
            thread.start()
            self._thread = thread

    def _append(self, call: _Call) -> None:
        self.pending = self._count(1)
        self._queue.append(call)

    def _end(self) -> None:
        with self._changed:
            self._queue.append(None)
            self._wake(0.0)

    def _wake(self, due: float) -> None:
        self._due = due
        self._changed.notify()

    def _begin_next(self) -> _Call | None:
        """Take the next call out of the queue, to make it in this thread."""
        call = self._queue.popleft() if self._queue else None
        if call is not None:
            self._making = threading.current_thread()
        if not self._queue:
            self._due = inf
        return call

    def _begin_deferred(self) -> _Call | None:
        """Take the next call, unless the queue is the thread's to make."""
        if self._making is None and self._due:
            return self._begin_next()
        if self._queue:
            # After the call that runs, without waiting for this thread to come back.
            self._wake(0.0)
        return None

    def _end_call(self) -> None:
        with self._changed:
            self._making = None
            self.pending = self._count(-1)
            # The thread may have been waiting for this call to end.
            if not self._due:
                self._changed.notify()

    def _work(self) -> None:
        # No call stays here while the thread waits: it would keep its group alive.
        while self._make_next():
            pass

    def _make_next(self) -> bool:
        with self._changed:
            self._wait_until_due()
            call = self._begin_next()
        if call is None:
            return False
        end = call.handle.carry_out(call.action)
        # See Handle.carry_out().
        del call
        end()
        self._end_call()
        return True

    def _wait_until_due(self) -> None:
        self._looks = _IDLE_LOOKS
        while True:
            is_idle = not self._queue_deferred() and self._due == inf
            if self._making is None and monotonic() >= self._due:
                break
            self._looks = self._looks - 1 if is_idle else _IDLE_LOOKS
            # If all queued calls are due, the end of the running call wakes the thread.
            self._look(self._due > 0 and self._looks > 0)
            self._changed.wait(_DEFER_SECONDS if self._looking else None)
        self._look(False)

    def _queue_deferred(self) -> bool:
        """Return whether the core has deferred calls, and queue them if late."""
        if self._comm is None or (waited := self._comm.deferred_seconds()) < 0:
            return False
        if waited >= _DEFER_SECONDS and self._due > 0:
            # The calls have its errors, too.
            handle: Handle[None] = Handle(lambda _: None)
            self._append(_Call(handle, self._comm.make_deferred))
            self._due = 0.0
        return True

    def _look(self, looking: bool) -> None:
        self._looking = looking
        if self._comm is not None:
            self._comm.watch(looking)
