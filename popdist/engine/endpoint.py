"""One process's end of a group: its transport, its worker and its lifetime.

All state of the engine's Python part is here. Groups are views of an endpoint.
"""

import os
import sys
import threading
import weakref

from popdist.engine.failures import unusable
from popdist.engine.transport import Transport
from popdist.engine.worker import Worker

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


def _disown_all() -> None:
    for endpoint in list(_endpoints):
        endpoint.disown()


os.register_at_fork(after_in_child=_disown_all)
