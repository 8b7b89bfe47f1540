"""The one thread that works on the inventory; requests wait for it in a queue.

So a database that another process keeps locked delays the answers, and not the
server: it still says that it is there, counts, and refuses what would wait too long.
Requests of holders of IPUs come first, because they keep leases or free IPUs.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from poprun.vipu.errors import InventoryBusyError

MOST_WAITING = 2000
# A client that has waited for longer has given up.
LONGEST_WAIT_S = 30.0
# So many results go back to the event loop together.
_MOST_TOGETHER = 32
# So many requests of holders in a row hold up others, as any client can make them.
_MOST_HOLDERS = 8

# What to run, the future of its result, and until when it may begin.
Job = tuple[Callable[[], Any], "asyncio.Future[Any]", float]
Result = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Worker:
    """Runs functions in a thread of their own, one after the other."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._jobs_of_holders: deque[Job] = deque()
        self._num_holders = 0  # that had their turn since another had one
        self._thread = ThreadPoolExecutor(1, "inventory")
        self._delivery: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.waiting = 0

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
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting += 1
        jobs = self._jobs_of_holders if is_of_holder else self._jobs
        jobs.append((function, future, time.monotonic() + LONGEST_WAIT_S))
        if self._delivery is None:
            self._delivery = asyncio.create_task(self._deliver())
        return await future

    def stop(self) -> None:
        """Finish what is being done, refuse what waits, and end the thread."""
        self._is_stopping = True
        self._thread.shutdown()
        self._pass_on(self._work())

    async def _deliver(self) -> None:
        """Let the thread work until nothing waits."""
        loop = asyncio.get_running_loop()
        while self._jobs or self._jobs_of_holders:
            self._pass_on(await loop.run_in_executor(self._thread, self._work))
        self._delivery = None

    def _pass_on(self, results: list[Result]) -> None:
        self.waiting -= len(results)
        for future, value, error in results:
            if future.done():  # the request was cancelled
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    def _work(self) -> list[Result]:
        """Do some of what waits, in the thread; refuse it all when the server stops."""
        results: list[Result] = []
        while self._jobs or self._jobs_of_holders:
            if len(results) == _MOST_TOGETHER and not self._is_stopping:
                break
            results.append(self._run(*self._next_job()))
        return results

    def _next_job(self) -> Job:
        is_turn_of_others = self._num_holders >= _MOST_HOLDERS and self._jobs
        if self._jobs_of_holders and not is_turn_of_others:
            self._num_holders += 1
            return self._jobs_of_holders.popleft()
        self._num_holders = 0
        return self._jobs.popleft()

    def _run(
        self,
        function: Callable[[], Any],
        future: "asyncio.Future[Any]",
        deadline: float,
    ) -> Result:
        try:
            if self._is_stopping or time.monotonic() > deadline:
                why = "is stopping" if self._is_stopping else "is overloaded"
                raise InventoryBusyError(f"The V-IPU server {why}. Try again.")
            return future, function(), None
        except BaseException as error:  # it is raised where the result is waited for
            return future, None, error
