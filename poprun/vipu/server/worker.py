"""The one thread that works on the inventory; requests wait for it in a queue.

So a database that another process keeps locked delays the answers, and not the
server: it still says that it is there, counts, and refuses what would wait too long.
Holders of IPUs come first, because what they do keeps leases or makes room.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from poprun.vipu.errors import InventoryBusyError

MOST_WAITING = 2000
# Who has waited so long has given up: the answer would come too late.
LONGEST_WAIT_S = 30.0
# So many results go back to the event loop together.
_MOST_TOGETHER = 32
# After so many of holders in a row comes another: any client may pretend to be one.
_MOST_HOLDERS = 8

# What to run, for whom, and until when it may begin.
Job = tuple[Callable[[], Any], "asyncio.Future[Any]", float]
Result = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Worker:
    """Runs functions in a thread of their own, one after the other."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._jobs_of_holders: deque[Job] = deque()
        self._num_holders = 0  # that had their turn since another had one
        # True for each job; False ends the thread.
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="inventory")
        self._is_stopping = False
        self.waiting = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def run(
        self, function: Callable[[], Any], *, is_of_holder: bool = False
    ) -> Any:
        """Run a function in the thread, and return what it returns.

        Raises:
            InventoryBusyError: Too many wait already, or the server is stopping.
        """
        if self._loop is None or self.waiting >= MOST_WAITING:
            raise InventoryBusyError(
                f"The V-IPU server is overloaded: {self.waiting} requests wait. Try "
                "again in a few seconds."
            )
        future = self._loop.create_future()
        self.waiting += 1
        jobs = self._jobs_of_holders if is_of_holder else self._jobs
        jobs.append((function, future, time.monotonic() + LONGEST_WAIT_S))
        self._tokens.put(True)
        return await future

    def stop(self) -> None:
        """Finish what is being done, refuse what waits, and end the thread."""
        self._is_stopping = True
        self._tokens.put(False)
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while True:
            has_job = self._tokens.get()
            results: list[Result] = []
            while has_job:
                results.append(self._done(self._next_job()))
                if len(results) == _MOST_TOGETHER:
                    break
                try:
                    has_job = self._tokens.get_nowait()
                except Empty:
                    break
            if results and self._loop is not None:
                self._loop.call_soon_threadsafe(self._deliver, results)
            if not has_job:
                return

    def _next_job(self) -> Job:
        is_turn_of_others = self._num_holders >= _MOST_HOLDERS and self._jobs
        if self._jobs_of_holders and not is_turn_of_others:
            self._num_holders += 1
            return self._jobs_of_holders.popleft()
        self._num_holders = 0
        return self._jobs.popleft()

    def _deliver(self, results: list[Result]) -> None:
        self.waiting -= len(results)
        for future, value, error in results:
            if future.done():  # the request was cancelled
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    def _done(self, job: Job) -> Result:
        function, future, deadline = job
        if self._is_stopping or time.monotonic() > deadline:
            why = "is stopping" if self._is_stopping else "is overloaded"
            return (
                future,
                None,
                InventoryBusyError(f"The V-IPU server {why}. Try again."),
            )
        try:
            return future, function(), None
        except BaseException as error:  # it is raised where the result is waited for
            return future, None, error
