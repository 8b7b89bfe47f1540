"""One handle for the calls of several groups."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from popdist.engine.handle import Handle

T = TypeVar("T")


class JoinedHandle(Handle[T]):
    """Calls of several groups that may still be under way, as one call.

    It ends when the last of them has ended, or the first one has failed.
    """

    # Any, because each operation's calls return what its own docstring says.
    def __init__(
        self, calls: Sequence[Handle[Any]], join: Callable[[Sequence[Any]], T]
    ) -> None:
        """Join the handles of some calls.

        Args:
            join: Returns the result, of the results of all calls.
        """
        super().__init__(self._give_up_calls)
        self._calls = calls
        self._join = join
        self._counting = threading.Lock()
        self._left = len(calls)
        for call in calls:
            call.add_done_callback(self._count)

    def wait(self) -> T:
        for call in self._calls:
            if not self.test():
                call.check_waiter()
        return super().wait()

    def _count(self, call: Handle[Any]) -> None:
        try:
            call.result()
            ended = 1
        # result() raises it again below.
        except BaseException:
            ended = len(self._calls)
        with self._counting:
            before, self._left = self._left, self._left - ended
        # Only once, also if another call fails after the first one.
        if before > 0 >= self._left:
            self.run(lambda: self._result_of(call))

    def _result_of(self, last: Handle[Any]) -> T:
        # If a call has failed, this raises its error.
        last.result()
        return self._join([call.result() for call in self._calls])

    def _give_up_calls(self, error: BaseException) -> None:
        for call in self._calls:
            if not call.test():
                call._give_up(error)
