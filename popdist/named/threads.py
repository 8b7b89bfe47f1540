"""The threads of this process that can still make a named call."""

import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from popdist.engine.handle import Helper


class Callers:
    """The threads that make a group's calls. Its owner must hold a lock."""

    def __init__(self) -> None:
        # Threads that wait in a call or for one, and the event that they wait for.
        self._held: dict[threading.Thread, threading.Event | None] = {}
        self._seen: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def come(self) -> None:
        """Record that the running thread makes calls."""
        self._seen.add(threading.current_thread())

    @contextmanager
    def held(
        self, lock: threading.Condition, until: threading.Event | None = None
    ) -> Iterator[None]:
        """Mark the running thread as unable to make a call while in this block.

        Args:
            lock: Protects this object.
            until: The event that lets the thread continue.
        """
        thread = threading.current_thread()
        with lock:
            # A signal handler may make a call in a thread that is held.
            outer = thread in self._held
            before = self._held.get(thread)
            self._held[thread] = until
        try:
            yield
        finally:
            with lock:
                if outer:
                    self._held[thread] = before
                else:
                    del self._held[thread]

    def free(self) -> list[threading.Thread]:
        """Return the threads that can make a call now.

        The engine's own make none that have not been begun.
        """
        return [
            thread
            for thread in threading.enumerate()
            if not isinstance(thread, Helper) and not self._is_held(thread)
        ]

    def has_foreign_threads(self) -> bool:
        """Return whether there are threads that Python's own list does not have.

        They were not started by the module threading, so their state is unknown.
        """
        known = {thread.ident for thread in threading.enumerate()}
        return not known.issuperset(sys._current_frames())

    def makes_calls(self, thread: threading.Thread) -> bool:
        """Return whether a thread is one that calls are to be expected of."""
        return thread in self._seen or thread is threading.main_thread()

    def _is_held(self, thread: threading.Thread) -> bool:
        until = self._held.get(thread)
        return thread in self._held and not (until and until.is_set())
