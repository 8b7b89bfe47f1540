"""The one thread that works on the inventory; requests wait for it in a queue.

So a database that another process keeps locked delays the answers, and not the
server: it still answers /health, counts, and refuses requests that wait too long.
Requests of holders of IPUs come first, because they keep leases or free IPUs.

The thread takes what waits in groups. The changes of a group are one transaction (group
commit), and no request of it is answered before that is in the database.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from poprun.vipu.errors import InventoryBusyError, VipuError

MOST_WAITING = 2000
# A client that has waited for longer has given up.
LONGEST_WAIT_S = 30.0
# Weighted fair queueing: so many requests of holders have their turn for one of others,
# as any client can make them.
HOLDERS_FOR_ONE = 8
# Other processes wait for the lock of the inventory as long as a group takes.
MOST_TOGETHER = 32
# When it has its turn, and in which order it came; the function, the future of its
# result, and until when it may begin.
Job = tuple[float, int, Callable[[], Any], "asyncio.Future[Any]", float]
# The result, or the error that was raised instead.
Result = tuple[Any, Exception | None]


class Worker:
    """Runs functions in a thread of their own, one after the other.

    Args:
        together: Makes one transaction of those that are begun within it.
    """

    def __init__(self, together: Callable[[], AbstractContextManager[None]]) -> None:
        self._together = together
        self._jobs: asyncio.PriorityQueue[Job] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        # The turn that it is, and the last ones given to others and to holders.
        self._turn = 0.0
        self._last_turns = [0.0, 0.0]
        self._thread = ThreadPoolExecutor(1, "inventory")
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def waiting(self) -> int:
        return self._jobs.qsize()

    async def run(
        self, function: Callable[[], Any], *, is_of_holder: bool = False
    ) -> Any:
        """Run a function in the thread, and return what it returns.

        It is run again, alone, if the transaction of its group fails.

        Raises:
            InventoryBusyError: Too many wait already, or the server is stopping.
        """
        if self.waiting >= MOST_WAITING:
            raise InventoryBusyError(
                f"The V-IPU server is overloaded: {self.waiting} requests wait. Try "
                "again in a few seconds."
            )
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        turn = max(self._turn, self._last_turns[is_of_holder])
        turn += 1 if is_of_holder else HOLDERS_FOR_ONE + 0.5
        self._last_turns[is_of_holder] = turn
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        deadline = time.monotonic() + LONGEST_WAIT_S
        self._jobs.put_nowait((turn, next(self._numbers), function, future, deadline))
        return await future

    def stop(self) -> None:
        """Finish the current function, end the thread, and refuse what waits."""
        self._is_stopping = True
        self._thread.shutdown()

    async def _work(self) -> None:
        """Let the thread work on what waits, some of it at a time."""
        loop = asyncio.get_running_loop()
        while True:
            jobs = [await self._jobs.get()]
            while len(jobs) < MOST_TOGETHER and not self._jobs.empty():
                jobs.append(self._jobs.get_nowait())
            self._turn = jobs[-1][0]
            if self._is_stopping:
                results = self._run(jobs)
            else:
                results = await loop.run_in_executor(self._thread, self._run, jobs)
            for (_, _, _, future, _), (result, error) in zip(
                jobs, results, strict=True
            ):
                if future.done():  # the request was cancelled
                    continue
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

    def _run(self, jobs: list[Job]) -> list[Result]:
        try:
            with self._together():
                return [self._result_of(job) for job in jobs]
        except VipuError:  # no change has been made; alone, each job tells its error
            return [self._result_of(job) for job in jobs]

    def _result_of(self, job: Job) -> Result:
        _, _, function, _, deadline = job
        try:
            if self._is_stopping or time.monotonic() > deadline:
                why = "is stopping" if self._is_stopping else "is overloaded"
                raise InventoryBusyError(f"The V-IPU server {why}. Try again.")
            return function(), None
        except Exception as error:  # it is raised where the result is waited for
            return None, error
