"""How a process group makes calls of the engine, and their works."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.profiler import record_function

from popdist.engine import _core
from popdist.engine.calls.array_transport import ArrayTransport
from popdist.engine.group import Group
from popdist.engine.handle import AsyncOp
from popdist.torch.calls.arguments import check_exchanged, listed, refuse
from popdist.torch.calls.in_core import TORCH_OBJECTS, is_profiled
from popdist.torch.calls.untraced import untraced
from popdist.torch.calls.work import (
    DONE,
    CoalescedWork,
    CompletedWork,
    CoreWork,
    EngineWork,
    backend_errors,
)
from popdist.torch.tensor_rows import TORCH

# A list of tensors; a single tensor stands for a list of one.
Tensors = Tensor | Sequence[Tensor]
# Calls of up to so many bytes are deferred to the thread that waits for them: it
# computes nothing meanwhile. Longer ones begin at once, beside it.
_DEFERRED_BYTES = 1 << 20
# How many works with one number as their result are kept, for a wait by torch's C++.
_MOST_KEPT = 64


@untraced
class ProcessGroupCalls:
    """The part of a process group that makes calls of the engine's group."""

    def _use(self, group: Group, timeout: timedelta) -> None:
        """Make the calls of this group."""
        self._group = group
        self._carrier = ArrayTransport(group.transport, TORCH, 0)
        self._timeout = timeout
        self._coalesced: list[EngineWork] | None = None
        self._kept: deque[Any] = deque(maxlen=_MOST_KEPT)
        # How many calls the program has made, whether or not they have begun, without
        # those in the core.
        self._calls_made = 0
        # A call beside a backward pass takes time from it, unless it has a core, or
        # waits for other hosts.
        is_on_one_host = len(group.pidfds) + 1 == group.size
        self._overlaps = not is_on_one_host or group.cores >= 2 * group.size
        self._in_core = _core.TensorCalls(group, TORCH_OBJECTS, self._overlaps)

    @property
    def engine_group(self) -> Group:
        """The engine's group, for popdist.torch.tensors."""
        return self._group

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the works of the calls that follow."""
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Any:
        """Return a work that is over when all calls collected are."""
        works, self._coalesced = self._coalesced or [], None
        return CoalescedWork(works)

    def _root(self, call: str, opts: Any, root: int) -> int:
        """Return the root that is given, by torch's options or as a number."""
        number: int = opts if isinstance(opts, int) else getattr(opts, "rootRank", root)
        if number not in range(self._group.size):
            most = self._group.size - 1
            refuse(call, f"invalid root rank: {number} is not one of 0 to {most}.")
        return number

    def _call(
        self,
        operation: str,
        action: Callable[[], object],
        result: Any,
        opts: Any,
        timeout: timedelta | None = None,
        *,
        read: Any = (),
        written: Any = None,
    ) -> Any:
        """Make a call, and return its work.

        While torch's profiler runs, it records the call, or the start of one that goes
        on beside the program.

        Args:
            operation: The name in errors and in the profile.
            action: Carries the call out, in one or several steps of self._carrier.
            opts: torch's options of the call.
            timeout: How long to wait for it, as in the options; None or less than 0 for
                the group's, after which the call ends the group.
            read: The dense tensors that it only reads.
            written: The dense tensors that it writes; by default all of its result.
        """
        check_exchanged(operation, read, result if written is None else written)
        self._calls_made += 1
        is_async, limit = bool(getattr(opts, "asyncOp", True)), _limit_of(opts, timeout)
        async_op: AsyncOp = limit is not None or (is_async and self._async_op(result))
        name = f"popdist:{operation}"
        with record_function(name) if is_profiled() else nullcontext():
            with backend_errors():
                handle: Any = self._group.submit(operation, action, async_op)
            if not async_op:
                return CompletedWork(result) if is_async else DONE
            work = EngineWork(handle, result, limit)
            self._keep(work, _is_one_number(result))
            if not is_async:
                work.wait()
            return work

    def _work_in_core(self, operation: str, made: Any, written: Tensors) -> Any:
        """Return the work of a call that the core has made or deferred."""
        if made is DONE:
            return made
        result = listed(written)
        if made is True:
            return CompletedWork(result)
        work = CoreWork(self._group, operation, made, result)
        return self._keep(work, made.is_number)

    def _async_op(self, result: Any) -> AsyncOp:
        """Return the async_op of an asynchronous call with this result."""
        # All members make the calls of a backward pass in the same order, and wait for
        # nothing else in it: so a call can be made at once there, though its caller
        # would wait for it later.
        if not self._overlaps and torch._C._current_graph_task_id() != -1:
            return False
        return "deferred" if _is_small(result) else True

    def _keep(self, work: EngineWork, is_number: bool) -> EngineWork:
        """Keep an asynchronous call's work for later uses of it, and return it."""
        # DistributedDataParallel.join() leaves the work of its count of members to
        # torch's C++. That keeps a work alive, but not its Python methods: a wait for
        # it would never end then.
        if is_number:
            self._kept.append(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work


def _limit_of(opts: Any, timeout: timedelta | None) -> Callable[[], float] | None:
    """Return a function that returns a call's timeout in seconds; None without one."""
    limit = timeout or getattr(opts, "timeout", None)
    return limit.total_seconds if limit and limit > timedelta() else None


def _is_small(result: Any) -> bool:
    """Return whether a call takes no longer than it may wait for its caller."""
    return (
        isinstance(result, list)
        and all(isinstance(x, Tensor) and x.layout is torch.strided for x in result)
        and sum(tensor.nbytes for tensor in result) <= _DEFERRED_BYTES
    )


def _is_one_number(result: Any) -> bool:
    return (
        isinstance(result, list)
        and len(result) == 1
        and isinstance(result[0], Tensor)
        and result[0].numel() == 1
    )


def op_of(opts: Any, op: Any) -> Any:
    """Return the reduction that the caller chose; a sum by default.

    Args:
        opts: torch's options, or the reduction itself, or a root.
    """
    if isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
        return opts
    if op is not None:
        return op
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)
