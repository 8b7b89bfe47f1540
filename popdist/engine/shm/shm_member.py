"""One member of a group in shared memory: its arena, its heap and the C core."""

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from popdist.engine import _core
from popdist.engine.failures import (
    Missing,
    cannot_share,
    describe_call,
    describe_missing,
    explain,
    failed,
    fields_of,
    name_instances,
    unusable,
    unusable_because,
)
from popdist.engine.meet.deadlines import report
from popdist.engine.meet.meeting import Meeting
from popdist.engine.shm.arena import Memory, share_arena
from popdist.engine.shm.heap import HEAP_SPAN, Heap
from popdist.engine.spec.operations import Operation, Status
from popdist.engine.tuning import (
    MOST_MEMBERS,
    Tuning,
    caches_of_members,
    cores_of_members,
)
from popdist.errors import PopdistError


class ShmMember:
    """One member of a group in shared memory, for the rows of all its views."""

    def __init__(
        self, meeting: Meeting, simd: str | None, tuning: Tuning | None
    ) -> None:
        """Meet the other members; see ShmTransport.meet()."""
        self.rank = rank = meeting.rank
        self.instances = tuple(meeting.instances)
        # The members of the larger group that this one belongs to. A call's root is an
        # index into them.
        self.group_instances: Sequence[int] = self.instances
        # Called with the members that are missing in a long wait in shared memory.
        self.note_missing: Callable[[Sequence[int]], object] = lambda members: None
        self._timeout = meeting.timeout
        # Whether an error with the reason for the end of the group has been raised.
        self._reported = False
        _check_level(simd)
        check_seconds("timeout", meeting.timeout)
        check_seconds("stall", meeting.stall)
        size = meeting.size
        try:
            memory = _memory(size, tuning)
        except OSError as error:
            raise cannot_share(meeting.own_name, error) from error
        self.arena = share_arena(meeting, memory, _agreed(size, tuning))
        self.identity = self.arena.identity
        self.host_of: Sequence[int] | None = None
        # It maps nothing before the first array is requested.
        self._heap = Heap(self.arena.fd, rank, size)
        self.comm = _core.Comm(
            self.arena.memory,
            rank,
            simd,
            self.arena.pidfds,
            self.arena.pids,
            meeting.timeout,
            meeting.stall,
            stall_reporter(self),
            self.instances[rank],
        )
        # The core must not keep this member alive.
        known = weakref.proxy(self)
        self.comm.explain_by(lambda: known.failure())

    def failure(self) -> PopdistError:
        """Return the error to raise for a call that the core did not finish."""
        ending = self.comm.ending()
        # The member that was interrupted has its KeyboardInterrupt.
        if ending is not None and ending[:2] == (Status.STOPPED, self.rank):
            self._reported = True
        if ending is None:
            return unusable(None, self.instances)
        why = explain(ending, self.instances, self._timeout, missing=self.missing())
        # The first call to fail gives the reason, even if the others ended it before.
        if not self._reported:
            self._reported = True
            return why
        return unusable_because(why, ending, self.instances)

    def missing(self) -> list[Missing]:
        """Return the members that have not begun this member's current call."""
        return [Missing(q, *self.comm.recent(q)) for q in self.comm.missing()]

    def give_up(self, what: str, error: BaseException) -> None:
        """End the group for all, because of an error between the steps of a call."""
        if self.comm.ending() is not None:
            return
        # The program has the error itself.
        self._reported = True
        self.comm.end(*fields_of(failed(self.instances[self.rank], what, error)))

    def end(self, error: PopdistError) -> None:
        """End the group: all members get this error."""
        self.comm.end(*fields_of(error))

    def allocate(self, nbytes: int) -> "np.ndarray[Any, np.dtype[np.uint8]] | None":
        """Return bytes in the arena, or None where no arrays can live there."""
        heap = self._heap
        if nbytes == 0 or not heap.available:
            return None
        offset, memory = heap.allocate(nbytes)
        # A member that was stopped in the last call may yet write to its arrays. Not
        # before: the group may end, and an array of that call be freed, in between.
        if self.comm.ending() is not None:
            heap.free(offset, nbytes)
            return None
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
        check_seconds("timeout", seconds)
        self._timeout = seconds
        self.comm.set_timeout(seconds)

    def close(self) -> None:
        """Leave the group, and release this member's part of it.

        Raises:
            RuntimeError: This thread is in the middle of a call of the group.
        """
        # In the order in which they use each other.
        self.comm.close()
        self._heap.close()
        self.arena.close()

    def disown(self) -> None:
        """Make no calls any more, in a forked child."""
        self.comm.close()

    def report_stall(self, peer: int, waited: float) -> None:
        """Print on stderr which member a call has been waiting for."""
        call = self.comm.doing()
        what = (
            describe_call(call, self.group_instances)
            if call
            else Operation.BARRIER.public_name
        )
        missing = self.missing()
        self.note_missing([one.member for one in missing])
        late = [one.member for one in missing] or [peer]
        *others, last = (str(self.arena.pids[q]) for q in late)
        pids = f"es {', '.join(others)} and {last}" if others else f" {last}"
        report(
            f"popdist: instance {self.instances[self.rank]} has waited {waited:.0f} s "
            f"for {name_instances([self.instances[q] for q in late])} (process{pids} "
            f"on {os.uname().nodename}) in {what}."
            + "".join(
                f"\npopdist: {line}"
                for line in describe_missing(missing, self.group_instances)
            )
        )


def _check_level(simd: str | None) -> None:
    levels = _core.simd_levels()
    if simd is not None and simd not in levels:
        raise ValueError(
            f"simd is {simd!r}, but must be one of {', '.join(levels)}: this processor "
            "has no other."
        )


def check_seconds(name: str, seconds: float) -> None:
    """Raise ValueError unless this is a number of seconds that calls can wait."""
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
    """Return the function that makes the arena's memory, given the members' pids.

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
        _core.arena_sizes(*_sizes(size, tuning))

    def memory(pids: Sequence[int]) -> Memory:
        chosen = tuning or Tuning.measured(size, cores_of_members(pids))
        sizes = _sizes(size, chosen)
        nbytes, begin, end = _core.arena_sizes(*sizes)
        # Only the members of a large group report to each other within their caches.
        caches = (
            caches_of_members(pids) if size > _core.HIERARCHY_ABOVE else bytes(size)
        )
        return Memory(
            nbytes, (begin, end), lambda at: _core.initialise(at, sizes, caches)
        )

    return memory


def _agreed(size: int, tuning: Tuning | None) -> str:
    """Return the values that must be the same on all members."""
    sizes = _sizes(size, tuning) if tuning else "as measured"
    return f"popdist arena, layout {_core.arena_layout():016x}, sizes {sizes}"


def stall_reporter(member: ShmMember) -> Callable[[int, float], None]:
    """Return the core's callback for stalls; it does not keep the member alive."""
    known = weakref.ref(member)

    def report_it(peer: int, waited: float) -> None:
        there = known()
        if there is not None:
            there.report_stall(peer, waited)

    return report_it
