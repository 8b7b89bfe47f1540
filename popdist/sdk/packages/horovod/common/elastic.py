"""A state that is committed and restored, and functions that go on from it.

The number of ranks of a job is fixed here, so no rank joins or leaves. What remains of
an elastic job: a function that fails by an error of Horovod goes on from its last
commit, if all ranks still run.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from .exceptions import HorovodInternalError, HostsUpdatedInterrupt


class State:
    """What a function that is run elastically goes on from."""

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]
    ) -> None:
        """Make a state.

        Args:
            bcast_object: Returns the object of rank 0.
            get_rank: Returns the rank of this process.
        """
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], object]] = []
        self._committed = False

    def register_reset_callbacks(
        self, callbacks: Iterable[Callable[[], object]]
    ) -> None:
        """Call these functions whenever the function begins anew."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to a new beginning: reset(), then the registered callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep the state as it is now, for restore()."""
        self.save()
        self._committed = True
        self.check_host_updates()

    def take_commit(self) -> bool:
        """Return whether commit() was called since the last time."""
        committed, self._committed = self._committed, False
        return committed

    def check_host_updates(self) -> None:
        """Do nothing: the hosts of a job do not change."""

    def save(self) -> None:
        """Keep the state as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to what was saved."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over the state of rank 0. All ranks must call it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to a new beginning, before the callbacks are called."""


class ObjectState(State):
    """A state of objects that can be pickled, each an attribute."""

    # Any, because the attributes are of all types.
    def __init__(
        self,
        bcast_object: Callable[[Any], Any],
        get_rank: Callable[[], int],
        **kwargs: Any,
    ) -> None:
        """Make a state with these attributes."""
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._set_attributes()

    def save(self) -> None:
        """Keep the attributes as they are now."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Set the attributes to what was saved."""
        self._set_attributes()

    def sync(self) -> None:
        """Set the attributes to what rank 0 has saved."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attributes()

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


# Any, because the function's arguments and result are its own.
def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """Return a function that calls this one until it returns, each time from a commit.

    Args:
        func: Takes a State first. It begins anew after a HorovodInternalError, if
            it has made a commit since it began, and after a HostsUpdatedInterrupt.
        reset: Is called before it begins anew.
    """

    @wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        synchronized = False
        while True:
            if not synchronized:
                state.sync()
            try:
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                # Without a commit it would fail in the same place for ever.
                if not state.take_commit():
                    raise
                state.restore()
                synchronized = False
            except HostsUpdatedInterrupt as interrupt:
                synchronized = interrupt.skip_sync
            reset()
            state.on_reset()

    return wrapper
