"""The thread that makes a group's calls beside the program."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from popdist.engine.handle import Handle, Helper, check_interpreter, check_thread

T = TypeVar("T")


class Worker:
    """One thread that makes the calls of one group, started when first needed."""

    def __init__(self, count: Callable[[int], int]) -> None:
        """Make a worker that tells by `count` when there are more calls, or fewer."""
        # How many calls wait or run. While it is 0, calls need no worker.
        self.pending = 0
        self._count = count
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(
        self, action: Callable[[], T], give_up: Callable[[BaseException], None]
    ) -> Handle[T]:
        """Run the action after all that were submitted before it.

        Args:
            give_up: Called if a wait for it is interrupted.
        """
        check_interpreter()
        handle: Handle[T] = Handle(give_up)

        def run() -> None:
            handle.run(action)
            with self._lock:
                self.pending = self._count(-1)

        with self._lock:
            if self._thread is None:
                thread = Helper(target=self._work, name="popdist", daemon=True)
                # May fail: calls are counted only once a thread makes them.
                thread.start()
                self._thread = thread
            handle.maker = self._thread
            self.pending = self._count(1)
            self._queue.put(run)
        return handle

    def check_caller(self) -> None:
        """Raise RuntimeError if the caller is the thread that it would wait for."""
        check_thread(self._thread)

    def close(self) -> None:
        """Let the thread end once it has done what was submitted."""
        # Also if the join is interrupted: what is submitted after that needs another.
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._queue.put(None)
            thread.join()

    def stop(self) -> None:
        """Let the thread end, without waiting for it: no call is under way."""
        if self._thread is not None:
            self._queue.put(None)

    def _work(self) -> None:
        # No call stays here while the thread waits: it would keep its group alive.
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        run = self._queue.get()
        if run is None:
            return False
        run()
        return True
