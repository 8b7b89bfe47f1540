"""What one process holds of a group: its arena, heap, worker and the C core.

The one place of the engine with state. Groups are views of it.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from popdist.engine import _core
from popdist.engine.failures import (
    cannot_share,
    describe_call,
    explain,
    failed,
    unusable,
)
from popdist.engine.meet.deadlines import report
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.shm.arena import Arena, Memory, meet
from popdist.engine.shm.heap import HEAP_SPAN, Heap
from popdist.engine.spec.operations import ALGORITHMS, Operation, Status
from popdist.engine.tuning import MOST_MEMBERS, Tuning, cores_of_members
from popdist.engine.worker import Worker
from popdist.errors import GroupUnusableError, PeerLostError, PopdistError

_endpoints: "weakref.WeakSet[Endpoint]" = weakref.WeakSet()


class Endpoint:
    """What this process holds of one arena, for all views of the group.

    It is closed with the last of its views that is open.
    """

    def __init__(
        self,
        name: GroupName,
        rank: int,
        size: int,
        *,
        instances: Sequence[int],
        timeout: float,
        stall: float,
        simd: str | None,
        tuning: Tuning | None,
        known: Mapping[int, Pidfd] | None = None,
        ended_file: str = "",
    ) -> None:
        self.rank = rank
        self.size = size
        self.instances = tuple(instances)
        self.timeout = timeout
        self.closed = False
        # The views that are open. One that is dropped is open no more.
        self._views: weakref.WeakSet[object] = weakref.WeakSet()
        # A signal's handler may close a view while this thread closes another.
        self._lock = threading.RLock()
        # Whether an error with the reason for the end of the group has been raised.
        self._reported = False
        _check_level(simd)
        _check_seconds("timeout", timeout)
        _check_seconds("stall", stall)
        try:
            memory = _memory(size, tuning)
        except OSError as error:
            raise cannot_share(f"Instance {self.instances[rank]}", error) from error
        self._arena: Arena = meet(
            name,
            rank,
            size,
            memory=memory,
            layout=_agreed(size, tuning).encode(),
            timeout=timeout,
            stall=stall,
            instances=self.instances,
            known=known,
            ended_file=ended_file,
        )
        # It maps nothing before the first array is requested.
        self._heap = Heap(self._arena.fd, rank, size)
        self.comm = self._open(simd, stall)
        self.worker = Worker(self.comm.queue)
        _endpoints.add(self)
        # For a group that is dropped without close(). Calls under way keep it alive.
        self._release = weakref.finalize(
            self, _release, self.comm, self.worker, self._heap, self._arena
        )
        self._release.atexit = False

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        """A pidfd of each other instance, while this member is in the group."""
        return {} if self.closed else self._arena.watching()

    @property
    def cores(self) -> int:
        """How many cores the members can use together."""
        return cores_of_members(self._arena.pids)

    @property
    def runs(self) -> dict[str, int]:
        """How many reductions each algorithm has carried out."""
        return dict(zip(ALGORITHMS, self.comm.runs(), strict=True))

    def open_view(self, view: object) -> None:
        """Stay open until this view, and all others, are closed.

        Raises:
            GroupUnusableError: The endpoint is closed.
        """
        with self._lock:
            if self.closed:
                raise unusable(None, self.instances)
            self._views.add(view)

    def close_view(self, view: object) -> None:
        """Close the endpoint if no other view is open."""
        with self._lock:
            self._views.discard(view)
            last = not self._views
        if last:
            try:
                self.close()
            except BaseException:
                self._views.add(view)
                raise

    def _open(self, simd: str | None, stall: float) -> _core.Comm:
        return _core.Comm(
            self._arena.memory,
            self.rank,
            simd,
            [fd + 1 for fd in self._arena.pidfds],
            self._arena.pids,
            self.timeout,
            stall,
            stall_reporter(self),
        )

    def failure(self) -> PopdistError:
        """Return what to raise for a call that the core did not finish."""
        ending = self.comm.ending()
        # The member that was interrupted has its KeyboardInterrupt.
        if ending is not None and ending[:2] == (Status.STOPPED, self.rank):
            self._reported = True
        if ending is None:
            return unusable(None, self.instances)
        why = explain(ending, self.instances, self.timeout)
        # The first call to fail gives the reason, even if the others ended it before.
        if not self._reported:
            self._reported = True
            return why
        error = unusable(ending, self.instances)
        # That one may be in a handle that the program has not waited for yet.
        error.__cause__ = why
        if isinstance(why, PeerLostError) and isinstance(error, GroupUnusableError):
            error.instances = why.instances
        return error

    def give_up(self, what: str, error: BaseException) -> None:
        """End the group for all, because of an error between the steps of a call.

        The others would wait for the steps to come. If the group has come to its end
        already, or is closed, nothing happens.
        """
        if self.closed or self.comm.ending() is not None:
            return
        # The program has the error itself.
        self._reported = True
        self.comm.end(failed(self.instances[self.rank], what, error))

    def allocate(self, nbytes: int) -> "np.ndarray[Any, np.dtype[np.uint8]] | None":
        """Return bytes in the arena, or None where no arrays can live there."""
        if self.closed:
            raise unusable(None, self.instances)
        heap = self._heap
        if nbytes == 0 or not heap.available:
            return None
        offset, memory = heap.allocate(nbytes)
        array = np.frombuffer(memory, np.uint8)
        begin = self.rank * HEAP_SPAN + offset
        self.comm.set_heap(array.__array_interface__["data"][0] - begin, HEAP_SPAN)
        weakref.finalize(array, heap.free, offset, nbytes).atexit = False
        return array

    def set_timeout(self, seconds: float) -> None:
        """Let calls from now on wait so long for other members.

        Raises:
            ValueError: It is not more than 0.
        """
        _check_seconds("timeout", seconds)
        self.timeout = seconds
        self.comm.set_timeout(seconds)

    def close(self) -> None:
        """Leave the group. The others need this member no more."""
        # Python has stopped its other threads in the middle of whatever they did, so
        # nothing can be waited for. The others see that this process ends.
        if self.closed or sys.is_finalizing():
            return
        try:
            self.worker.close()
        except BaseException as error:
            self.give_up("close", error)
            raise
        # Refused from inside a call of its own; once that is over, it can be closed.
        self.comm.close()
        self.closed = True
        self._release()

    def disown(self) -> None:
        """Let go, in a child, of what is its parent's."""
        self.closed = True
        # Another thread of the parent may have held it.
        self._lock = threading.RLock()
        self.worker = Worker(self.comm.queue)
        self.comm.close()

    def report_stall(self, peer: int, waited: float) -> None:
        """Print on stderr which member a call has been waiting for."""
        call = self.comm.doing()
        what = (
            describe_call(call, self.instances)
            if call
            else Operation.BARRIER.public_name
        )
        report(
            f"popdist: instance {self.instances[self.rank]} has waited {waited:.0f} s "
            f"for instance {self.instances[peer]} (process {self._arena.pids[peer]} on "
            f"{os.uname().nodename}) in {what}."
        )


def _release(comm: _core.Comm, worker: Worker, heap: Heap, arena: Arena) -> None:
    """Give back what a group has, in the order in which its parts use each other."""
    worker.stop()
    comm.close()
    heap.close()
    arena.close()


def _check_level(simd: str | None) -> None:
    levels = _core.simd_levels()
    if simd is not None and simd not in levels:
        raise ValueError(
            f"simd is {simd!r}, but must be one of {', '.join(levels)}: this processor "
            "has no other."
        )


def _check_seconds(name: str, seconds: float) -> None:
    # NaN is not more than 0, either.
    if not seconds > 0:
        raise ValueError(
            f"{name} is {seconds:g}, but must be a number of seconds more than 0."
        )


# Sizes of an arena: members, bytes of a block, of what goes by oneshot, us of a spin.
_Sizes = tuple[int, int, int, int]


def _sizes(size: int, tuning: Tuning) -> _Sizes:
    fitted = tuning.fitted()
    return size, fitted.block_bytes, fitted.oneshot_bytes, fitted.spin_us


def _memory(size: int, tuning: Tuning | None) -> Callable[[Sequence[int]], Memory]:
    """Return what makes the arena's memory for members with given process ids.

    Where the sizes are not given, member 0 chooses them as it makes the arena: another
    member's cgroup may grant it other cores.
    """
    if size > MOST_MEMBERS:
        raise ValueError(
            f"A group has {size} members, but can have at most {MOST_MEMBERS}. Start "
            "fewer instances with more replicas each."
        )
    if tuning is not None:
        # Sizes that are impossible are refused before the members meet.
        _core.arena_bytes(*_sizes(size, tuning))

    def memory(pids: Sequence[int]) -> Memory:
        chosen = tuning or Tuning.measured(size, cores_of_members(pids))
        sizes = _sizes(size, chosen)
        return Memory(
            _core.arena_bytes(*sizes),
            _core.arena_channels(*sizes),
            lambda where: _core.initialise(where, *sizes),
        )

    return memory


def _agreed(size: int, tuning: Tuning | None) -> str:
    """Return what all members must agree on."""
    sizes = _sizes(size, tuning) if tuning else "as measured"
    return f"popdist arena, layout {_core.arena_layout():016x}, sizes {sizes}"


def stall_reporter(endpoint: Endpoint) -> Callable[[int, float], None]:
    """Return what the core calls in a stall; it does not keep the endpoint alive."""
    known = weakref.ref(endpoint)

    def report_it(peer: int, waited: float) -> None:
        there = known()
        if there is not None:
            there.report_stall(peer, waited)

    return report_it


def _disown_all() -> None:
    for endpoint in list(_endpoints):
        endpoint.disown()


os.register_at_fork(after_in_child=_disown_all)
