"""One process's end of a group: its transport, its worker and its lifetime.

All state of the engine's Python part is here. Groups are views of an endpoint.
"""

import atexit
import os
import sys
import threading
import weakref
from contextlib import suppress
from time import monotonic, sleep

from popdist.engine.failures import lost_by, unusable
from popdist.engine.meet.meeting import read_ended
from popdist.engine.transport import Transport
from popdist.engine.worker import Worker
from popdist.errors import PopdistError

# How long an instance that fails because others end waits for the launcher to see their
# end: the end of a Python that has loaded a framework takes seconds on a busy machine.
_LOST_SECONDS = 10.0
# How long it waits between two looks, and until the launcher that has seen it stops it.
_LOOK_SECONDS = 0.05

_endpoints: "weakref.WeakSet[Endpoint]" = weakref.WeakSet()


class Endpoint:
    """This process's part of a group, for all views of it.

    It is closed with the last of its views that is open.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.worker = _worker_of(transport)
        self.closed = False
        # The views that are open. One that is dropped is open no more.
        self._views: weakref.WeakSet[object] = weakref.WeakSet()
        # A signal's handler may close a view while this thread closes another.
        self._lock = threading.RLock()
        _endpoints.add(self)
        # For a group that is dropped without close(). Calls under way keep it alive.
        self._release = weakref.finalize(self, _release, self.worker, transport)
        self._release.atexit = False

    def open_view(self, view: object) -> None:
        """Stay open until this view, and all others, are closed.

        Raises:
            GroupUnusableError: The endpoint is closed.
        """
        with self._lock:
            if self.closed:
                raise unusable(None, self.transport.instances)
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

    def close(self) -> None:
        """Leave the group. The others need this member no more."""
        # Python has stopped its other threads in the middle of whatever they did, so
        # nothing can be waited for. The others see that this process ends.
        if self.closed or sys.is_finalizing():
            return
        try:
            self.worker.close()
        except BaseException as error:
            self.transport.give_up("close", error)
            raise
        # The transport refuses this inside one of its calls; close() works afterwards.
        self.transport.close()
        self.closed = True
        self._release.detach()

    def disown(self) -> None:
        """Release the parent's group in a forked child, without ending it."""
        self.closed = True
        # Another thread of the parent may have held it.
        self._lock = threading.RLock()
        self.worker = _worker_of(self.transport)
        self.transport.disown()


def _worker_of(transport: Transport) -> Worker:
    core = transport.core
    return Worker(transport.queue, None if core is None else core.comm)


def _release(worker: Worker, transport: Transport) -> None:
    """Leave a group. The process has no view of it any more."""
    worker.stop()
    transport.close()


def leave_all(error: PopdistError) -> None:
    """Leave all groups of this process, and do not wait for other members.

    Args:
        error: What calls under way raise, here and in other members on this host.
    """
    for endpoint in list(_endpoints):
        if not endpoint.closed:
            endpoint.transport.end(error)
    for endpoint in list(_endpoints):
        endpoint.close()


class _LostAtExit:
    """STATE: the file that tells, at the end of this process, who has ended before."""

    def __init__(self) -> None:
        self.instance, self.ended_file = 0, ""

    def wait(self) -> None:
        lost = lost_by(getattr(sys, "last_value", None)) - {self.instance}
        until = monotonic() + _LOST_SECONDS
        # The program may let a signal raise an exception, which says nothing now.
        with suppress(KeyboardInterrupt, SystemExit):
            while lost:
                sees_end = lost <= read_ended(self.ended_file)
                sleep(_LOOK_SECONDS)
                if sees_end or monotonic() > until:
                    return


_lost_at_exit = _LostAtExit()


def wait_for_lost_at_exit(instance: int, ended_file: str) -> None:
    """Let this process, if it fails, end after the instances that are the cause.

    An instance that fails leaves its groups before it ends, and so the others fail:
    the launcher would take the first one that ends for the cause. After the first end
    it stops the others, and these do not count as failed.

    Args:
        ended_file: The launcher's file of ended instances.
    """
    if not _lost_at_exit.ended_file:
        atexit.register(_lost_at_exit.wait)
    _lost_at_exit.instance, _lost_at_exit.ended_file = instance, ended_file


def _disown_all() -> None:
    for endpoint in list(_endpoints):
        endpoint.disown()


os.register_at_fork(after_in_child=_disown_all)
