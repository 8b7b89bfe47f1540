"""Links: what carries messages between the instances of a job on several hosts."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from popdist.errors import PeerLostError


def unanswered(other: str, own: str, seconds: float, instance: int) -> PeerLostError:
    """Return the error for an instance whose host answers no connection.

    Args:
        other, own: That instance, and the ones that need it, with their hosts.
    """
    return PeerLostError(
        f"{other} has not answered {own} for {seconds:.0f} s. The network between "
        "these hosts has failed, or a firewall blocks it: let their TCP connections "
        "through, or choose another network with poprun's --host-subnet.",
        (instance,),
    )


class LinkError(Exception):
    """Links cannot send or receive a message, for the reason with this number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Links(Protocol):
    """The links of this process to all other instances of its job.

    Groups exchange arrays by the functions of the table, which the core calls. The
    methods are for all else. Any thread may call them.
    """

    @property
    def table(self) -> object:
        """The functions for the core: a capsule for Comm.connect_hosts()."""

    @property
    def most_tag(self) -> int:
        """The largest tag of the messages of groups; tags below 16 are not for them."""

    @property
    def failed(self) -> Mapping[int, int]:
        """The instances that have died, as far as the links detect it.

        With each, for how many seconds its host has not answered, 0 if the process has
        ended.
        """

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all instances, once all call this with equally many bytes.

        Called once, before all other methods.
        """

    def post(self, instance: int, data: bytes) -> None:
        """Begin to send a short message, unless the instance is known to have died.

        Raises:
            LinkError: The instance cannot be reached.
        """

    def take(self) -> tuple[int, bytes] | None:
        """Return a short message that has come, and its sender; None if there is none.

        One thread at a time calls this, which also advances messages under way.
        """

    def is_sending(self) -> bool:
        """Return whether short messages are still being sent."""

    def prepare(
        self,
        instance: int,
        count_deaths: Callable[[], int],
        is_over: Callable[[], bool],
    ) -> bool:
        """Block until a message may be sent to an instance; return whether it may.

        Args:
            count_deaths: Looks for deaths, and returns how many instances of other
                hosts are known to have died.
            is_over: Returns whether to wait no longer.

        Raises:
            LinkError: The instance cannot be reached.
        """

    def explain(self, error: int) -> str:
        """Return the meaning of an error's number."""

    def begin_end(self, sent: NDArray[np.int64]) -> Callable[[], int | None]:
        """Announce that this process sends nothing any more; all instances must.

        Args:
            sent: How many short messages this process has sent to each instance.

        Returns:
            A function that returns None until all instances have come to this, and
            then how many short messages they have sent here.
        """

    def close(self) -> None:
        """Shut the links down, once all instances have come to their end."""
