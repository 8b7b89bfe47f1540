"""The errors that Horovod raises."""


class HorovodInternalError(RuntimeError):
    """A collective call failed, or the ranks' calls did not match."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed; never raised, as no job is elastic."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("The hosts of the job have changed.")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A part of Horovod has another version. Never raised: there is one part."""
