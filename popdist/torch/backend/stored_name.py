"""The name under which the members of a process group meet, in torch's store."""

import secrets
import warnings
from time import monotonic

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from popdist.errors import ArenaError

_KEY = "popdist"
# For how many seconds a store may fail to answer. Usually its process has ended; if it
# was a member, that is detected meanwhile.
_SILENCE = 2.0


class StoredName:
    """A secret that member 0 chooses for each group, and the others look up.

    A store may outlive groups, and jobs: torchrun's serves all attempts. So the stored
    name may belong to an earlier group, and is looked up again until a process listens
    at its address.
    """

    def __init__(self, store: Store, rank: int) -> None:
        """Choose a name, if this is member 0.

        Raises:
            ArenaError: The store cannot be reached.
        """
        self._store = store
        # When the store began to fail, if it does.
        self._failing: float | None = None
        # The name, or the last stored name, and the version of member 0's torch.
        self.chosen, self._torch = "", _torch_version()
        if rank == 0:
            self.chosen = secrets.token_hex(16)
            try:
                store.set(_KEY, f"{self.chosen} {self._torch}")
                # set() alone returns before a server has answered.
                store.check([_KEY])
            except dist.DistError as error:
                raise _unreachable(error) from error

    def look_up(self) -> str | None:
        """Return the name in the store, None if there is none.

        Raises:
            ArenaError: The store has not been reached for seconds.
        """
        try:
            if not self._store.check([_KEY]):
                return None
            stored: bytes = self._store.get(_KEY)
        except dist.DistError as error:
            self._failing = self._failing or monotonic()
            if monotonic() - self._failing < _SILENCE:
                return None
            raise _unreachable(error) from error
        self._failing = None
        self.chosen, _, self._torch = stored.decode().partition(" ")
        return self.chosen

    def compare_torch(self, first: int, own: int) -> None:
        """Warn if this member has another torch than member 0.

        Args:
            first: Member 0's number in the warning; `own` is this member's.
        """
        if self._torch != _torch_version():
            warnings.warn(
                f"Instance {own} has torch {_torch_version()}, but instance {first} "
                f"has torch {self._torch}: their results may differ, and so may the "
                "calls that they make. Install the same version on all hosts.",
                RuntimeWarning,
                stacklevel=4,
            )


def _torch_version() -> str:
    """Return the version of torch, without what it was built for."""
    return str(torch.__version__).partition("+")[0]


def _unreachable(error: dist.DistError) -> ArenaError:
    return ArenaError(
        "The store by which the members of a process group find each other cannot be "
        f"reached: {str(error).splitlines()[0]} As a rule the process that has it, "
        "rank 0, has ended. Look above for its last output."
    )
