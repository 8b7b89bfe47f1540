"""The one thread that works on the inventory; requests wait for it in a queue.

So a database that another process keeps locked delays the answers, and not the
server: it still answers /health, counts, and refuses requests that wait too long.
Requests of holders of IPUs come first, because they keep leases or free IPUs.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import PriorityQueue
from threading import Thread
from typing import Any

from poprun.vipu.errors import InventoryBusyError

MOST_WAITING = 2000
# A client that has waited for longer has given up.
LONGEST_WAIT_S = 30.0
# Weighted fair queueing: so many requests of holders have their turn for one of others,
# as any client can make them.
HOLDERS_FOR_ONE = 8
# When it has its turn, and in which order it came; the function, the future of its
# result, and until when it may begin.
Job = tuple[float, int, Callable[[], Any], "Future[Any]", float]


class Worker:
    """Runs functions in a thread of their own, one after the other."""

    def __init__(self) -> None:
        self._jobs: PriorityQueue[Job] = PriorityQueue()
        self._numbers = itertools.count()
        # The turn that it is, and the last ones given to others and to holders.
        self._turn = 0.0
        self._last_turns = [0.0, 0.0]
        self._is_stopping = False
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._jobs.qsize()

    async def run(
        self, function: Callable[[], Any], *, is_of_holder: bool = False
    ) -> Any:
        """Run a function in the thread, and return what it returns.

        Raises:
            InventoryBusyError: Too many wait already, or the server is stopping.
        """
        if self.waiting >= MOST_WAITING:
            raise InventoryBusyError(
                f"The V-IPU server is overloaded: {self.waiting} requests wait. Try "
                "again in a few seconds."
            )
        turn = max(self._turn, self._last_turns[is_of_holder])
        turn += 1 if is_of_holder else HOLDERS_FOR_ONE + 0.5
        self._last_turns[is_of_holder] = turn
        return await asyncio.wrap_future(self._put(turn, function))

    def stop(self) -> None:
        """Finish the current function, refuse what waits, and end the thread."""
        self._is_stopping = True
        self._put(float("inf"), lambda: None)
        self._thread.join()

    def _put(self, turn: float, function: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        deadline = time.monotonic() + LONGEST_WAIT_S
        self._jobs.put((turn, next(self._numbers), function, future, deadline))
        return future

    def _work(self) -> None:
        while self._turn < float("inf"):
            self._turn, _, function, future, deadline = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                continue  # the request was cancelled
            try:
                if self._is_stopping or time.monotonic() > deadline:
                    why = "is stopping" if self._is_stopping else "is overloaded"
                    raise InventoryBusyError(f"The V-IPU server {why}. Try again.")
                future.set_result(function())
            except Exception as error:  # it is raised where the result is waited for
                future.set_exception(error)
