"""The one thread that works on the inventory; requests wait for it in a queue.

So a database that another process keeps locked delays the answers, and not the
server: it still says that it is there, counts, and refuses what would wait too long.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from poprun.vipu.vipu_errors import InventoryBusyError

MOST_WAITING = 2000
# So many results go back to the event loop together.
_MOST_TOGETHER = 32

Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]
Result = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Worker:
    """Runs functions in a thread of their own, one after the other."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="inventory")
        self.waiting = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread, and return what it returns.

        Raises:
            InventoryBusyError: Too many wait already.
        """
        if self._loop is None or self.waiting >= MOST_WAITING:
            raise InventoryBusyError(
                f"The V-IPU server is overloaded: {self.waiting} requests wait. Try "
                "again in a few seconds."
            )
        future = self._loop.create_future()
        self.waiting += 1
        self._jobs.put((function, future))
        return await future

    def stop(self) -> None:
        """Finish what waits, and end the thread."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            results: list[Result] = []
            while job is not None:
                results.append(_done(job))
                if len(results) == _MOST_TOGETHER:
                    break
                try:
                    job = self._jobs.get_nowait()
                except Empty:
                    break
            if results and self._loop is not None:
                self._loop.call_soon_threadsafe(self._deliver, results)
            if job is None:
                return

    def _deliver(self, results: list[Result]) -> None:
        self.waiting -= len(results)
        for future, value, error in results:
            if future.done():  # whoever waited was cancelled
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


def _done(job: Job) -> Result:
    function, future = job
    try:
        return future, function(), None
    except BaseException as error:  # it is raised where the result is waited for
        return future, None, error
