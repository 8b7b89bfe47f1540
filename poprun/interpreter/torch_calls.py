"""Shows poprun which collectives of torch.distributed this process is in, with gloo.

Each call writes some numbers to a file in memory, which poprun reads from outside:
popdist/call_records.py has the layout. This adds 3 us to a call, which is
little compared with the wait for others.
"""

import mmap
import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from popdist import call_records as records
from poprun.interpreter.sitecustomize import CONTROL, tell

# The same number as in poprun/wire/protocol.py.
TORCH_GROUPS = 45
# The methods of torch's process groups that begin a collective.
OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
}

Position = tuple[int, int, bytes]
write_begun = records.TORCH_BEGUN.pack_into
write_wait = records.TORCH_WAIT.pack_into


class Calls:
    """The calls of this process, in the file in memory. Any is torch's ProcessGroup."""

    def __init__(self) -> None:
        fd = os.memfd_create(records.TORCH_NAME)
        os.ftruncate(fd, records.TORCH_BYTES)
        self._memory = mmap.mmap(fd, records.TORCH_BYTES)
        # poprun finds the file by the descriptor that mmap keeps.
        os.close(fd)
        records.TORCH_HEADER.pack_into(
            self._memory, 0, records.TORCH_MAGIC, os.getpid()
        )
        # Where each group is in the file, and how many calls it has begun.
        self._groups: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
        self._num_groups = 0

    def begin(self, group: Any, operation: bytes) -> Position:
        """Count a call of a group; return which one it is."""
        state = self._groups.get(group)
        if state is None:
            state = self._groups[group] = [self._add(group), 0]
        state[1] += 1
        at, number = state
        if at:
            write_begun(self._memory, at, number)
        return at, number, operation

    def begin_wait(self, position: Position) -> None:
        at, number, operation = position
        if at:
            now = time.monotonic_ns()
            write_wait(self._memory, at + records.TORCH_WAIT_AT, number, now, operation)

    def end_wait(self, position: Position) -> None:
        if position[0]:
            at = position[0] + records.TORCH_WAIT_AT
            write_wait(self._memory, at, 0, 0, b"")

    def _add(self, group: Any) -> int:
        """Describe a group in the file; return where, or 0 if there is no room."""
        if self._num_groups == records.MOST_TORCH_GROUPS:
            return 0
        at = records.TORCH_HEADER.size + self._num_groups * records.TORCH_GROUP_BYTES
        ranks = dist.get_process_group_ranks(group)
        if max(ranks) >= records.MOST_TORCH_RANKS:
            return 0
        members = sum(1 << rank for rank in ranks)
        description = at + records.TORCH_MEMBERS_AT
        records.TORCH_MEMBERS.pack_into(
            self._memory,
            description,
            members.to_bytes(records.MOST_TORCH_RANKS // 8, "little"),
            group.group_name.encode(),
        )
        self._num_groups += 1
        return at


# STATE: of this process, once it has made a group with gloo.
_calls: Calls | None = None


def observe() -> None:
    """Tell poprun about the process groups of this process, and show it gloo's calls.

    popdist's groups have another class, and show their calls themselves.
    """
    global _calls
    control, rank = os.environ.get(CONTROL), os.environ.get("RANK", "")
    world: Any = dist.group.WORLD
    if control is None or _calls is not None or type(world) is not dist.ProcessGroup:
        return
    os.close(tell(control, rank, TORCH_GROUPS))
    cpu: Any = world._get_backend(torch.device("cpu"))
    if cpu._get_backend_name() != "gloo" or torch.accelerator.is_available():
        return
    # A program may number its processes in another way.
    numbers = str(dist.get_rank()), str(dist.get_world_size())
    if numbers == (rank, os.environ["WORLD_SIZE"]):
        _calls = Calls()
        _observe_groups(_calls)
        _observe_backward(_calls)


def _observe_groups(calls: Calls) -> None:
    works: WeakKeyDictionary[Any, Position] = WeakKeyDictionary()

    def observed(usual: Callable[..., Any], operation: bytes) -> Callable[..., Any]:
        @wraps(usual)
        def begin(group: Any, *args: Any, **kwargs: Any) -> Any:
            position = calls.begin(group, operation)
            try:
                work = usual(group, *args, **kwargs)
            except BaseException as error:
                _leave_frame_out(error)
                raise
            if work is not None:
                works[work] = position
            return work

        return begin

    for name, operation in OPERATIONS.items():
        if (method := getattr(c10d.ProcessGroup, name, None)) is not None:
            setattr(c10d.ProcessGroup, name, observed(method, operation.encode()))
    usual_wait: Callable[..., Any] = c10d.Work.wait

    @wraps(usual_wait)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        position = works.get(work)
        if position is None:
            return usual_wait(work, *args, **kwargs)
        calls.begin_wait(position)
        try:
            return usual_wait(work, *args, **kwargs)
        except BaseException as error:
            _leave_frame_out(error)
            raise
        finally:
            calls.end_wait(position)

    setattr(c10d.Work, "wait", wait)  # noqa: B010  # mypy knows it as a method


def _observe_backward(calls: Calls) -> None:
    """Show when a backward pass reduces gradients, which it does in C++."""
    pending: WeakSet[Any] = WeakSet()
    # The end of forward(), which torch.compile does not compile.
    name = "_post_forward"
    usual_end: Callable[..., Any] = getattr(DistributedDataParallel, name)
    usual_backward: Callable[..., Any] = torch.autograd.backward

    @wraps(usual_end)
    def end_forward(self: Any, output: Any) -> Any:
        if self.require_backward_grad_sync and torch.is_grad_enabled():
            pending.add(self.process_group)
        return usual_end(self, output)

    @wraps(usual_backward)
    def backward(*args: Any, **kwargs: Any) -> None:
        groups = list(pending)
        pending.clear()
        positions = [calls.begin(group, records.TORCH_BACKWARD) for group in groups]
        for position in positions:
            calls.begin_wait(position)
        try:
            usual_backward(*args, **kwargs)
        except BaseException as error:
            _leave_frame_out(error)
            raise
        finally:
            for position in positions:
                calls.end_wait(position)

    setattr(DistributedDataParallel, name, end_forward)
    torch.autograd.backward = backward


def _leave_frame_out(error: BaseException) -> None:
    """Leave the frame that has caught an error out of the program's traceback.

    `raise` alone adds no frame again.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
