"""Works: the results of torch.distributed's asynchronous calls, over engine handles."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from popdist.engine import _core
from popdist.engine.group import Group
from popdist.engine.handle import Handle
from popdist.errors import CollectiveTimeoutError, PopdistError
from popdist.torch.calls.untraced import untraced
from popdist.torch.channels import Message


class InvalidArgumentError(RuntimeError, ValueError):
    """Arguments that the members of a group cannot exchange; nothing was begun.

    torch's own groups raise either of its bases, by backend.
    """


def backend_error(error: BaseException) -> BaseException:
    """Return torch.distributed's exception for an error of the engine."""
    if not isinstance(error, PopdistError):
        return error
    hint = ""
    if isinstance(error, CollectiveTimeoutError):
        hint = " Here that is the timeout of init_process_group or new_group."
    raised = dist.DistBackendError(f"popdist: {error}{hint}")
    raised.__cause__ = error
    return raised


@contextmanager
def backend_errors() -> Iterator[None]:
    """Turn errors of the engine into torch.distributed's exceptions."""
    try:
        yield
    except PopdistError as error:
        raise backend_error(error) from error


@untraced
class EngineWork(dist.Work):
    """A call of the engine that may be under way."""

    # Defaults, so that small calls have fewer attributes to set.
    _handle: Handle[Any] | None = None
    _timeout: Callable[[], float] | None = None
    _future: torch.futures.Future[Any] | None = None

    def __init__(
        self,
        handle: Handle[Any],
        result: Any,
        timeout: Callable[[], float] | None = None,
    ) -> None:
        """Make the work of a call.

        Args:
            handle: The engine's handle.
            result: The value of `result()` and of the future after the call.
            timeout: Returns for how many seconds wait() blocks if it is given none.
                Without it, wait() blocks until the call ends, by its own timeout.
        """
        super().__init__()
        self._handle, self._result, self._timeout = handle, result, timeout

    def handle(self) -> Handle[Any]:
        """Return the engine's handle of the call."""
        assert self._handle is not None
        return self._handle

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the call is over. Raises the call's error.

        Raises:
            DistBackendError: It is not over in time.
        """
        seconds = timeout.total_seconds() if timeout else 0.0
        if seconds <= 0 and self._timeout is not None:
            seconds = self._timeout()
        if seconds > 0 and not self.handle().is_done_in(seconds):
            raise dist.DistBackendError(
                f"popdist: Timed out waiting {seconds:g} s for a collective call; see "
                "the timeout of init_process_group and new_group."
            )
        try:
            self.handle().wait()
        except PopdistError as error:
            raise backend_error(error) from error
        return True

    def synchronize(self) -> None:
        """Block until the call is over."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call is over."""
        return self.handle().test()

    def is_success(self) -> bool:
        """Return whether the call is over and has succeeded."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the call's error, None if there is none."""
        if not self.is_completed():
            return None
        try:
            self.handle().result()
        except BaseException as error:
            return backend_error(error)
        return None

    def result(self) -> Any:
        """Return the tensors that the call has written; it must be over."""
        self.wait()
        return self._result

    def source_rank(self) -> int:
        """Return which member a receive from any source has got its tensor from."""
        return self._handle.source if isinstance(self._handle, Message) else -1

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[Any]":
        """Return a future with the tensors that the call writes."""
        if self._future is None:
            over: torch.futures.Future[None] = torch.futures.Future()
            handle, result = self.handle(), self._result

            def outcome(_: torch.futures.Future[None]) -> Any:
                try:
                    handle.result()
                except PopdistError as error:
                    raise backend_error(error) from error
                return result

            # An exception that a future was given is a value for torch's C++ code: the
            # backward pass of DistributedDataParallel would take it for tensors, and
            # crash. One that a callback raises is an error there, too.
            self._future = over.then(outcome)
            handle.add_done_callback(lambda _: over.set_result(None))
        return self._future


@untraced
class CoreWork(EngineWork):
    """A call that the core may have deferred."""

    def __init__(
        self, group: Group, operation: str, call: _core.TensorCall, result: Any
    ) -> None:
        dist.Work.__init__(self)
        self._group, self._operation, self._call = group, operation, call
        self._result = result

    def handle(self) -> Handle[Any]:
        """Let the group's worker make the call, and return a handle of it."""
        if self._handle is None:
            if self._call.is_over:
                self._handle = Handle(lambda _: None)
                self._handle.run(self._call.wait)
            else:
                call = self._operation, self._call.wait, True
                self._handle = self._group.submit(*call)
        return self._handle

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the call is over: make it, if no other thread does."""
        if timeout:
            return super().wait(timeout)
        try:
            return self._call.wait()
        except PopdistError as error:
            raise backend_error(error) from error
        except BaseException as error:
            self._group.give_up(self._operation, error)
            raise

    def is_completed(self) -> bool:
        """Return whether the call is over."""
        return self._call.is_over


@untraced
class CompletedWork(EngineWork):
    """A call that is over and has succeeded."""

    def __init__(self, result: Any = None) -> None:
        super().__init__(_COMPLETED, result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True


@untraced
class CoalescedWork(dist.Work):
    """Several calls that were begun together."""

    def __init__(self, works: Sequence[EngineWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all works are over. Raises the error of the first failed one."""
        for work in self._works:
            work.wait(timeout)
        return True

    def synchronize(self) -> None:
        """Block until all of them are over."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether all of them are over."""
        return all(work.is_completed() for work in self._works)

    def result(self) -> list[Any]:
        """Return the tensors that each of them has written."""
        return [work.result() for work in self._works]


_COMPLETED: Handle[None] = Handle(lambda _: None)
_COMPLETED.run(lambda: None)
# For calls with a caller that needs no separate work.
DONE = CompletedWork()
