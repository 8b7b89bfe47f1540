"""The devices that a job holds: attach its instances, renew its lease, release it.

A thread asks the inventory, because the loop that supervises the job must not wait for
a disk or a server. It starts with the first request, or when the lease is to be
renewed: many jobs end before that.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from poprun.output.waiter import READ, Interest
from poprun.vipu import liveness
from poprun.vipu.errors import LeaseEndedError, VipuError
from poprun.vipu.launch.values import InstanceDevices
from poprun.vipu.leases import CUT_OFF_S, PARENT, Grant, ProcessIdentity

if TYPE_CHECKING:
    from poprun.vipu.inventory.interface import Inventory

# How often a lease is renewed during the time that it lives, 60 s: a job is to learn
# soon that its partition was removed with --force.
RENEWALS = 12
# When to try again if that fails: a lease must not end because a server has just been
# started again, or a machine has been asleep.
RETRY_S = 1.0
# How long `release` waits for the thread besides the timeout of the inventory.
MARGIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of the inventory to `attach`."""

    instance: int
    pid: int
    # Why the process is not attached; "" if it is.
    refusal: str = ""


# Is called with the answer, by the thread that calls `deliver`.
Reply = Callable[[Answer], None]


class HeldDevices:
    """The devices that one job holds, until they are released. One thread calls it.

    Args:
        open_inventory: Opens the inventory; that holds no descriptor until it is asked.
        grant: The lease and the devices that the inventory has granted.
        timeout_s: How long the inventory waits at most, for a disk or a server.
    """

    def __init__(
        self, open_inventory: Callable[[], "Inventory"], grant: Grant, timeout_s: float
    ) -> None:
        self.grant = grant
        self._open_inventory = open_inventory
        self._timeout_s = timeout_s
        # None ends the thread.
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._replies: deque[Callable[[], None]] = deque()
        # Used by the thread alone: attached processes, by instance and pid.
        self._attached: dict[tuple[int, int], ProcessIdentity] = {}
        self._event_fd = -1
        self._thread: Thread | None = None
        self._is_checked = self._is_released = False
        self._pause_s = grant.lease.lease_s / RENEWALS
        self._renew_at = time.monotonic() + self._pause_s
        # Until when instances of lost hosts may live.
        self._used_until = 0.0
        # A sentence when the lease has ended before the job.
        self.loss = ""

    def of_instances(self, first: int, number: int) -> InstanceDevices:
        """Return the devices of so many instances."""
        children = self.grant.children[first : first + number]
        return InstanceDevices(
            partition=self.grant.partition.name,
            num_ipus=self.grant.children[0].num_ipus,
            first=first,
            ids=[child.id for child in children],
        )

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are answers or a loss.

        -1 before there can be any.
        """
        return self._event_fd

    def deliver(self) -> None:
        """Reply with the answers that have come."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)
        for _ in range(len(self._replies)):
            self._replies.popleft()()

    def interests(self, now: float) -> Iterator[Interest]:
        if self._event_fd >= 0:
            yield Interest(self._event_fd, READ, self.deliver)

    def deadline(self, now: float) -> float:
        """Return when `tick` is due."""
        return float("inf") if self._thread else self._renew_at

    def tick(self, now: float) -> None:
        """Begin to renew the lease when it is time; the thread goes on with it."""
        if now >= self.deadline(now) and not self._is_released:
            self._start()

    def attach(self, index: int, pid: int, reply: Reply) -> None:
        """Ask for a process to be attached to an instance's device, until detached."""
        self._put(partial(self._attach, index, pid, reply))

    def attach_on(
        self, host: str, index: int, process: ProcessIdentity, reply: Reply
    ) -> None:
        """Ask for the same for a process of another host."""
        self._put(partial(self._attach, index, process.pid, reply, process, host))

    def detach(self, index: int, pid: int) -> None:
        """Let a process that has ended go; the instance keeps its device."""
        self._put(partial(self._detach, index, pid))

    def detach_all(self) -> None:
        """Let all processes go: the instances of an attempt have ended.

        The processes of a lost host have not reported their ends.
        """

        def detach() -> None:
            for index, pid in list(self._attached):
                self._detach(index, pid)

        self._put(detach)

    def note_lost_host(self) -> None:
        """Let the lease live as long as the instances of a host that is lost now."""
        self._used_until = time.monotonic() + CUT_OFF_S

    def live_with(self, pid: int) -> None:
        """Let the lease live as long as the guard of the job, too."""

        def attach() -> None:
            guard = liveness.identify(pid)
            self._inventory.attach(self.grant.lease.id, PARENT, guard)

        self._put(attach)

    def release(self) -> bool:
        """Give the devices back, and the partition if it was made for this job.

        It waits for the inventory. No process of the job may run any more, except on
        hosts that are lost: the inventory holds the devices until those have ended.
        `loss` says afterwards whether the job has held them to its end.

        Returns:
            Whether they are released: if not, the end action says why.
        """
        if self._is_released:
            return True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(self._timeout_s + MARGIN_S)
            if self._thread.is_alive():
                return False
        with suppress(VipuError):  # the end action tries again, and says why it fails
            if not self._is_checked:  # a release that failed may have ended the lease
                self._look_at_lease(self._inventory.get_lease)
                self._is_checked = True
            wait_s = max(0.0, self._used_until - time.monotonic())
            self._inventory.release(self.grant.lease.id, wait_s)
            self._is_released = True
            self._inventory.close()
        if self._event_fd >= 0:
            os.close(self._event_fd)
            self._event_fd = -1
        return self._is_released

    @cached_property
    def _inventory(self) -> "Inventory":
        return self._open_inventory()

    def _put(self, action: Callable[[], object]) -> None:
        if not self._is_released:
            self._queue.put(action)
            self._start()

    def _start(self) -> None:
        if self._thread is not None:
            return
        if self._event_fd < 0:
            self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = Thread(target=self._work, kwargs={"waits": True}, daemon=True)
        # Signals are for the thread that supervises the job.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # the kernel allows no more threads
            self._work(waits=False)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    # The methods below are the thread's.

    def _attach(
        self,
        index: int,
        pid: int,
        reply: Reply,
        process: ProcessIdentity | None = None,
        host: str | None = None,
    ) -> None:
        refusal = ""
        try:
            process = process or liveness.identify(pid)
            self._inventory.attach(self.grant.lease.id, index, process, host)
            self._attached[index, pid] = process
        except (ProcessLookupError, VipuError) as error:
            refusal = self.of_instances(index, 1).refusal(index, str(error))
        answer = Answer(instance=index, pid=pid, refusal=refusal)
        self._replies.append(partial(reply, answer))
        os.eventfd_write(self._event_fd, 1)

    def _detach(self, index: int, pid: int) -> None:
        process = self._attached.pop((index, pid), None)
        if process is not None:
            self._inventory.detach(self.grant.lease.id, index, process)

    def _work(self, *, waits: bool) -> None:
        """Perform the requests and renew the lease.

        Args:
            waits: Go on until `release`, not only as long as there is something to do.
        """
        while True:
            pause_s = max(0.0, self._renew_at - time.monotonic())
            try:
                action = self._queue.get(waits, pause_s)
            except Empty:
                if waits or not pause_s:
                    self._renew()
                if waits:
                    continue
                return
            if action is None:
                return
            # `attach` reports its refusals; the job can go on without the others.
            with suppress(VipuError, ProcessLookupError):
                action()

    def _renew(self) -> None:
        pause_s = self._pause_s
        try:
            self._look_at_lease(self._inventory.renew)
        except VipuError:  # busy, or away for a moment
            pause_s = min(pause_s, RETRY_S)
        self._renew_at = time.monotonic() + pause_s

    def _look_at_lease(self, operation: Callable[[str], object]) -> None:
        """Perform an operation on the lease, and note the loss if it has ended."""
        try:
            operation(self.grant.lease.id)
        except LeaseEndedError as error:
            if not self.loss:
                self.loss = str(error)
                if self._event_fd >= 0:
                    os.eventfd_write(self._event_fd, 1)
