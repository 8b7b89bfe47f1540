"""The connections of processes that can form their groups anew.

popdist connects to the control socket, and keeps the connection until the process ends.
Its requests become events, and poprun's answers are sent to it.
"""

from collections.abc import Callable

from poprun.host.control_socket import Messages
from poprun.wire import codec, protocol
from poprun.wire.channel import Channel
from poprun.wire.events import CanReform, Event, ReformAsked, ReformEnded, Rejected


class MemberConnections:
    """The connections of this host's instances, one for each.

    Args:
        emit: Is called with each event.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._links: dict[int, Channel] = {}
        # The instances that wait for an answer to REFORM.
        self._waiting: set[int] = set()

    def add(self, link: Channel, rank: int) -> None:
        """Take in a process of an instance that can re-form."""
        if rank in self._links:
            sentence = (
                f"Another process of instance {rank} can re-form already. Use "
                "popdist.elastic in one process of each instance only."
            )
            answer = {"generation": 0, "refusal": sentence}
            link.tell(protocol.ELASTIC_KNOWN, codec.json_field(answer))
            link.close()
            return
        self._links[rank] = link
        self._emit(CanReform(rank=rank))

    def receive(self, link: Channel, messages: Messages | None) -> None:
        """Act on messages of a process; None when it has ended."""
        rank = next((r for r, known in self._links.items() if known is link), None)
        if rank is None:
            return
        for kind, fields in messages or ():
            try:
                if kind != protocol.REFORM or rank in self._waiting:
                    raise ValueError("it is no request to re-form, or a second one")
                generation, *ports, silent = codec.read(kind, fields)
            except ValueError:
                self._emit(Rejected(why=f"a message of kind {kind} was not valid"))
                messages = None
                break
            self._waiting.add(rank)
            asked = ReformAsked(
                rank=rank,
                generation=generation,
                links_port=ports[0],
                store_port=ports[1],
                silent=silent,
            )
            self._emit(asked)
        if messages is None:
            link.close()
            del self._links[rank]
            self._waiting.discard(rank)
            self._emit(ReformEnded(rank=rank))

    def tell(self, rank: int, kind: int, content: bytes) -> None:
        """Send an answer of poprun's to the process of an instance, if it has one."""
        if kind in (protocol.REFORMED, protocol.REFORM_REFUSED, protocol.LEFT):
            self._waiting.discard(rank)
        if rank in self._links:
            self._links[rank].tell(kind, content)
