"""The errors that Horovod raises."""

from collections.abc import Iterator
from contextlib import contextmanager

from popdist.errors import PopdistError


class HorovodInternalError(RuntimeError):
    """A collective call failed, or the ranks' calls did not match."""


class NotInitializedError(ValueError):
    """A function was called before hvd.init(), or after hvd.shutdown()."""

    def __init__(self) -> None:
        super().__init__(
            "Horovod has not been initialized; use hvd.init() before any other "
            "call of it."
        )


@contextmanager
def internal_errors() -> Iterator[None]:
    """Raise popdist's errors, within this block, as Horovod's."""
    try:
        yield
    except PopdistError as error:
        # A new one for each wait, with the traceback of that.
        raise HorovodInternalError(str(error)) from error


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks are to be added to an elastic job: a state's commit() raises it."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("The hosts of the job have changed.")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A part of Horovod has another version. Never raised: there is one part."""
