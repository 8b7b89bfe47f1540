"""Asynchronous calls, which run in the order of their submission."""

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Generic, Literal, Protocol, TypeVar

from popdist.errors import GroupUnusableError

T = TypeVar("T")

# Whether a call returns a handle, and whether its caller will soon wait for that: then
# the thread that waits makes the call, if it comes before another one is woken.
AsyncOp = bool | Literal["deferred"]

# After how many seconds a waiting thread checks again that another thread can still
# make the call.
_CHECK_SECONDS = 0.2


class Scheduler(Protocol):
    """Decides which thread makes the calls of handles, one after the other."""

    def check_caller(self) -> None:
        """Raise RuntimeError if the caller is the thread that it would wait for."""

    def make_until(self, handle: "Handle[Any]") -> None:
        """Make the calls up to this one in this thread, if no other thread does."""

    def hurry(self) -> None:
        """Make all calls as soon as possible, whether they are waited for or not."""


class Handle(Generic[T]):
    """A call that may still be in progress."""

    def __init__(self, give_up: Callable[[BaseException], None]) -> None:
        """Make a handle that calls `give_up` if a wait for it is interrupted."""
        self._give_up = give_up
        self._pid = os.getpid()
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        # The thread that makes the call. None while the scheduler, if there is one, has
        # not chosen it.
        self.thread: threading.Thread | None = None
        self.scheduler: Scheduler | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Handle: {'done' if self.test() else 'under way'}>"

    def test(self) -> bool:
        """Return whether the call is complete. Never blocks."""
        return self._done.is_set()

    def wait(self) -> T:
        """Block until the call is complete, and return its result.

        Raises whatever the call would have raised. Ctrl-C ends the group for all
        members, as in any call, because the others cannot know whether this member
        completes it.
        """
        try:
            self.check_waiter()
            if self.scheduler is not None and not self.test():
                self._check_that_it_is_made()
                self.scheduler.make_until(self)
            while not self.test():
                self._check_that_it_is_made()
                self._done.wait(_CHECK_SECONDS)
        except WaitsForItselfError:
            raise
        except BaseException as error:
            if not self.test():
                self._give_up(error)
            raise
        return self.result()

    def is_done_in(self, seconds: float) -> bool:
        """Wait until the call has come to its end, and return whether it has in time.

        Unlike with wait(), an interrupt leaves the group as it is.
        """
        self.check_waiter()
        self._hurry()
        deadline = monotonic() + seconds
        while not self.test() and (left := deadline - monotonic()) > 0:
            self._check_that_it_is_made()
            self._done.wait(min(left, _CHECK_SECONDS))
        return self.test()

    def result(self) -> T:
        """Return the result of a completed call.

        Raises:
            RuntimeError: The call is not complete; use wait() to block until it is.
        """
        if not self.test():
            raise RuntimeError(
                "The collective call is still under way, so it has no result yet. "
                "Call wait() first."
            )
        if self._error is not None:
            raise self._error
        # Any, because None may be what the call returns.
        result: Any = self._result
        return result  # type: ignore[no-any-return]

    def add_done_callback(self, callback: Callable[["Handle[T]"], object]) -> None:
        """Call `callback` with this handle when the call is complete.

        It is called once, also after a failure: in the thread that makes the call, or
        at once in this thread if the call is already complete. It delays later calls,
        so waiting for one of them in it raises RuntimeError. An exception in it is
        reported by threading.excepthook, and has no other effect.
        """
        with self._lock:
            over = self.test()
            if not over:
                self._callbacks.append(partial(self._call_back, callback))
        if over:
            self._call_back(callback)
        else:
            self._hurry()

    def _call_back(self, callback: Callable[["Handle[T]"], object]) -> None:
        try:
            callback(self)
        # The call is over, whatever happens here: neither its result nor the calls
        # that follow depend on it.
        except BaseException as error:
            thread = threading.current_thread()
            threading.excepthook(
                threading.ExceptHookArgs(
                    (type(error), error, error.__traceback__, thread)
                )
            )

    def check_waiter(self) -> None:
        """Raise RuntimeError in the thread that makes the call, if it is not over."""
        if self.test():
            return
        check_thread(self.thread)
        if self.scheduler is not None:
            self.scheduler.check_caller()

    def _hurry(self) -> None:
        """Have the call made now, also if no thread calls wait()."""
        if self.scheduler is not None and not self.test() and os.getpid() == self._pid:
            self.scheduler.hurry()

    def _check_that_it_is_made(self) -> None:
        if os.getpid() != self._pid:
            raise GroupUnusableError(
                "This handle is of a call that the process makes from which this one "
                "was forked, so it cannot be waited for here. Call wait() there, "
                "before the fork."
            )
        check_interpreter()

    def run(self, action: Callable[[], T]) -> None:
        """Carry the call out, and make the callbacks."""
        self.carry_out(action)()

    def carry_out(self, action: Callable[[], T]) -> Callable[[], None]:
        """Carry the call out, and return a function that ends it, with its callbacks.

        Before a thread beside the program calls that function, it must drop its
        references to the handle and the action, and so to tensors: torch lets other
        threads run while it frees one. If Python has begun to end meanwhile, it stops
        the thread in a destructor of C++, and that aborts the process.
        """
        try:
            self._result = action()
        # Whatever it is, wait() raises it.
        except BaseException as error:
            self._error = error
        return partial(_end, self._done, self._lock, self._callbacks)


def _end(
    done: threading.Event, lock: threading.Lock, callbacks: list[Callable[[], None]]
) -> None:
    """End a call, and make its callbacks, without a reference to its handle."""
    with lock:
        done.set()
    # None can be added any more. The handle must not refer to itself by them.
    for callback in callbacks:
        callback()
    callbacks.clear()


class WaitsForItselfError(RuntimeError):
    """A callback waits for a call that can only begin when it has returned."""


def check_interpreter() -> None:
    """Raise GroupUnusableError if threads beside this one have stopped for good."""
    if sys.is_finalizing():
        raise GroupUnusableError(
            "Python is ending, and has stopped the thread that makes the group's "
            "calls with async_op=True. Wait for all handles before the program ends, "
            "and make no calls in __del__ after that."
        )


def check_thread(thread: threading.Thread | None) -> None:
    """Raise RuntimeError if a thread waits for a call that it must make itself.

    Such a thread runs a program's function only in a callback.
    """
    if thread is threading.current_thread():
        raise WaitsForItselfError(
            "A callback of add_done_callback waits for a collective call of the same "
            "group, which can begin only when the callback has returned. Make the call "
            "with async_op=True and wait for it elsewhere."
        )


class Helper(threading.Thread):
    """A thread of popdist: it makes only calls that other threads have begun."""
