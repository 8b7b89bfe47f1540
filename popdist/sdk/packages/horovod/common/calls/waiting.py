"""Horovod's calls that wait: for another call, or for all ranks."""

from time import monotonic_ns
from typing import Any

from popdist.negotiation.agreement import JOIN
from popdist.negotiation.call_requests import Kind, Request
from popdist.negotiation.calls import Call

from ..process_sets import ProcessSet, global_process_set
from .submission import HorovodHandle, submit


def poll(handle: HorovodHandle) -> bool:
    """Return whether a call is over, so that synchronize() returns at once."""
    return handle.poll()


def synchronize(handle: HorovodHandle) -> Any:
    """Block until a call is over, and return its result.

    Raises:
        HorovodInternalError: The ranks' tensors or arguments differ, or a rank has
            ended.
    """
    return handle.wait()


def begin_barrier(process_set: ProcessSet, now: bool) -> HorovodHandle:
    """Begin what barrier() does.

    Args:
        process_set: The ranks that take part.
        now: Whether the caller waits for it at once.
    """
    return submit(process_set, Call(Request(Kind.BARRIER, None)), now)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks of the process set have called it."""
    begin_barrier(process_set, True).wait()


def begin_join(now: bool) -> HorovodHandle:
    """Begin what join() does.

    Args:
        now: Whether the caller waits for it at once.
    """
    # All ranks of a host have one clock.
    request = Request(Kind.JOIN, JOIN, counts=(monotonic_ns(),))
    return submit(global_process_set, Call(request), now)


def join(device: int = -1) -> int:
    """Wait until all ranks have called this, and return the rank that did so last.

    Meanwhile this rank takes part in the allreduces and barriers of the others. It
    contributes zeros to a Sum and an Average, which still divides by all ranks, and
    what changes nothing to the rest. Other calls fail on the ranks that make them.

    Args:
        device: A GPU in Horovod; not used here.
    """
    last: int = begin_join(True).wait()
    return last
