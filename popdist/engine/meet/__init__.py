"""Where the members of one host meet: an abstract unix socket of member 0.

Member 0, the leader, collects a hello of every joiner, sends each the file descriptors
to share and the table of all members, and a message to begin when all have taken them
over. So a meeting succeeds for all members or fails for all: an error of one is sent to
the others, and the end of one ends its connection.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

from popdist.engine.failures import cannot_share
from popdist.engine.meet.deadlines import Deadline
from popdist.engine.meet.group_name import GroupName, keys_of
from popdist.engine.meet.joiner import Joiner
from popdist.engine.meet.leader import Leader
from popdist.engine.meet.members import Roster
from popdist.engine.meet.messages import Hello, Member
from popdist.errors import ArenaError, PeerLostError, PopdistError

T = TypeVar("T")


def rendezvous(
    name: GroupName,
    hello: Hello,
    roster: Roster,
    *,
    offer: Callable[[Sequence[Member]], Sequence[int]],
    attach: Callable[[Sequence[int], Sequence[Member]], T],
    timeout: float,
    stall: float,
    trouble: PopdistError | None = None,
) -> T:
    """Meet the other members, share memory with them, and return `attach`'s result.

    Every member calls this, with the same name, size and layout. All users see the
    address of the socket, but neither the name nor the address of another group follows
    from it: with a secret in the name, only members can meet under it.

    Args:
        name: Only joiners may give a function here.
        roster: The members that are to meet. If a member's pidfd is known, its end is
            detected even before it has connected.
        offer: Creates the file descriptors to share among these members; called by
            the leader only, once all have connected.
        attach: Takes the descriptors over on every member, and owns them from then on.
            Its first argument lists all members, in the order of their ranks.
        trouble: Why this member cannot take part: all members raise this error.

    Raises:
        MismatchError: The members do not belong together; on all of them.
        PeerLostError: One ended or gave up meanwhile; on all others.
        CollectiveTimeoutError: Some have not connected.
    """
    who = roster.name([hello.rank]).capitalize()
    where = f"the group of {roster.name_all()}"
    behind = hello.rank > 0
    deadline = Deadline(who, where, timeout=timeout, stall=stall, behind=behind)
    if behind:
        return _join(Joiner(name, hello, deadline, roster, trouble), who, attach)
    if not isinstance(name, str):
        raise TypeError("Member 0 is to look a name up, but must choose it itself.")
    leader = Leader(keys_of(name), hello, deadline, roster)
    return _lead(leader, who, offer, attach, trouble)


def _lead(
    leader: Leader,
    who: str,
    offer: Callable[[Sequence[Member]], Sequence[int]],
    attach: Callable[[Sequence[int], Sequence[Member]], T],
    trouble: PopdistError | None,
) -> T:
    with closing(leader):
        try:
            members = leader.collect()
            if trouble is not None:
                raise trouble
            fds = offer(members)
            leader.welcome(fds)
            try:
                attached = attach(fds, members)
            except PeerLostError as error:
                raise leader.reason(error) from None
            leader.begin()
        except Exception as error:
            leader.refuse(_for_all(who, error))
            raise
    return attached


def _join(
    joiner: Joiner,
    who: str,
    attach: Callable[[Sequence[int], Sequence[Member]], T],
) -> T:
    with closing(joiner):
        fds, members = joiner.enter()
        try:
            attached = attach(fds, members)
        except Exception as error:
            joiner.refuse(_for_all(who, error))
            if isinstance(error, PeerLostError):
                raise joiner.reason(error) from None
            raise
        joiner.begin()
    return attached


def _for_all(who: str, error: Exception) -> PopdistError:
    if isinstance(error, PopdistError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return cannot_share(who, error)
    return ArenaError(
        f"{who} could not join the others: {type(error).__name__}: {error}. "
        "Look above for its output."
    )
