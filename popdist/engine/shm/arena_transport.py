"""The part of a transport that is the same on one host and on several.

In both, members of a host share an arena, which the core uses.
"""

from collections.abc import Sequence

from popdist.engine.call_table import CallFields
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.shm.shm_member import ShmMember
from popdist.engine.spec.operations import ALGORITHM_NAMES, ALGORITHMS
from popdist.engine.transport import Core, Transport
from popdist.engine.tuning import cores_of_members


class ArenaTransport(Transport):
    """A transport with calls that the core makes, and without the ways to meet."""

    def __init__(
        self,
        rank: int,
        instances: tuple[int, ...],
        replicas: Sequence[int],
        local: ShmMember,
        core: Core,
    ) -> None:
        """Take part in a group.

        Args:
            local: This process as a member of its host's arena.
        """
        self.rank, self.instances, self.replicas = rank, instances, tuple(replicas)
        self.core = core
        self._arena, self._comm = local.arena, local.comm
        self._split = core.split
        self.queue, self.record_to = self._comm.queue, self._comm.record_to

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        return self._arena.watching()

    @property
    def cores(self) -> int:
        """How many cores the members of this host can use together."""
        return cores_of_members(self._arena.pids)

    @property
    def last_algorithm(self) -> str:
        return ALGORITHM_NAMES[self._comm.last()[0]]

    @property
    def runs(self) -> dict[str, int]:
        return dict(zip(ALGORITHMS, self._comm.runs(), strict=True))

    @property
    def waits(self) -> tuple[int, int, int, int]:
        return self._comm.waits()

    def blocks(self, nbytes: int) -> tuple[int, bool]:
        block_bytes, past_caches = self._comm.blocks(nbytes) or (0, 0)
        return block_bytes, bool(past_caches)

    def run(self, call: CallFields) -> None:
        self._comm.run(self._split, call)
