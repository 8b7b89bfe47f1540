"""Where the members of one host meet: an abstract unix socket of member 0.

Member 0, the leader, collects a hello of every joiner, sends each the file descriptor
to share and the table of all members, and a message to begin when all have taken it
over. So a meeting succeeds for all members or fails for all: an error of one is sent to
the others, and the end of one ends its connection.

The socket leaves no file behind, and needs no folder that can be written. All users see
its address in /proc/net/unix and may connect, so each end asks the kernel for the user
of the other one.
"""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import closing

from popdist.engine.failures import cannot_share
from popdist.engine.meet.joiner import Joiner
from popdist.engine.meet.leader import Leader
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.messages import Hello, Member
from popdist.engine.meet.pidfds import started
from popdist.errors import ArenaError, PeerLostError, PopdistError

# Creates the file descriptor to share among these members.
Offer = Callable[[Sequence[Member]], int]
# Takes the descriptor over, and owns it from then on. The members are in the order of
# their ranks.
Attach = Callable[[int, Sequence[Member]], None]


def rendezvous(meeting: Meeting, layout: str, *, offer: Offer, attach: Attach) -> None:
    """Meet the other members, and share memory with them.

    Every member calls this, with the same name, size and layout.

    Args:
        offer: Called by the leader only, once all have connected.
        attach: Called on every member.

    Raises:
        MismatchError: The members do not belong together; on all of them.
        PeerLostError: One ended or gave up meanwhile; on all others.
        CollectiveTimeoutError: Some have not connected.
    """
    rank, pid = meeting.rank, os.getpid()
    trouble: PopdistError | None = None
    try:
        start = started(pid)
    except ArenaError as error:
        # The others would wait for this member.
        start, trouble = 0, error
    hello = Hello(rank, meeting.size, pid, start, layout)
    if rank == 0:
        _lead(Leader(meeting, hello), meeting, offer, attach, trouble)
    else:
        _join(Joiner(meeting, hello, trouble), meeting, attach)


def _lead(
    leader: Leader,
    meeting: Meeting,
    offer: Offer,
    attach: Attach,
    trouble: PopdistError | None,
) -> None:
    with closing(leader):
        try:
            members = leader.collect()
            if trouble is not None:
                raise trouble
            fd = offer(members)
            leader.welcome(fd)
            try:
                attach(fd, members)
            except PeerLostError as error:
                raise leader.reason(error) from None
            leader.begin()
        except Exception as error:
            leader.refuse(_for_all(meeting.own_name, error))
            raise


def _join(joiner: Joiner, meeting: Meeting, attach: Attach) -> None:
    with closing(joiner):
        fd, members = joiner.enter()
        try:
            attach(fd, members)
        except Exception as error:
            joiner.refuse(_for_all(meeting.own_name, error))
            if isinstance(error, PeerLostError):
                raise joiner.reason(error) from None
            raise
        joiner.begin()


def _for_all(who: str, error: Exception) -> PopdistError:
    if isinstance(error, PopdistError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return cannot_share(who, error)
    return ArenaError(
        f"{who} could not join the others: {type(error).__name__}: {error}. "
        "Look above for its output."
    )
