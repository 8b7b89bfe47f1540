"""Where the members of one host meet: an abstract unix socket of member 0.

Member 0 collects a hello of every other member, sends each the file descriptors to
share and the table of all, and says "begin" when every one has taken them over. So
a meeting succeeds for all members or fails for all: an error of one is told to the
others, and the end of one ends its connection.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

from popdist.engine.rendezvous.guest import Guest
from popdist.engine.rendezvous.host import Host
from popdist.engine.rendezvous.messages import Hello, Member
from popdist.engine.rendezvous.patience import Patience
from popdist.engine.rendezvous.roster import Roster
from popdist.errors import ArenaError, PopdistError

T = TypeVar("T")

# The address of a unix socket has 108 bytes, and an abstract one begins with a zero.
_LONGEST_ADDRESS = 107


def rendezvous(
    name: str,
    hello: Hello,
    roster: Roster,
    *,
    offer: Callable[[], Sequence[int]],
    attach: Callable[[Sequence[int], Sequence[Member]], T],
    timeout: float,
    stall: float,
) -> T:
    """Meet the other members, and return what `attach` makes of what they share.

    Every member calls this, with the same name, size and layout.

    Args:
        roster: Whom it is to meet. The end of one whose pidfd is known is noticed
            even before it has come.
        offer: Makes the file descriptors to share; called by member 0 only.
        attach: Takes them over on every member, and with them the duty to close
            them. Gets all members, in the order of their ranks.

    Raises:
        MismatchError: The members do not belong together; on all of them.
        PeerLostError: One ended or gave up meanwhile; on all others.
        CollectiveTimeoutError: Some have not come.
    """
    who = roster.name([hello.rank]).capitalize()
    where = f"the group of {roster.name_all()}"
    behind = hello.rank > 0
    patience = Patience(who, where, timeout=timeout, stall=stall, behind=behind)
    address = address_of(name)
    if behind:
        return _be_guest(Guest(address, hello, patience, roster), who, attach)
    return _be_host(Host(address, hello, patience, roster), who, offer, attach)


def address_of(name: str) -> bytes:
    """Return the abstract address that belongs to a name, for this user."""
    address = f"\0popdist-{os.geteuid()}-{name}".encode()
    if len(address) <= _LONGEST_ADDRESS:
        return address
    # Few names are so long, and this costs milliseconds.
    from hashlib import blake2b

    return f"\0popdist#{blake2b(address, digest_size=24).hexdigest()}".encode()


def _be_host(
    host: Host,
    who: str,
    offer: Callable[[], Sequence[int]],
    attach: Callable[[Sequence[int], Sequence[Member]], T],
) -> T:
    with closing(host):
        try:
            fds = offer()
            members = host.collect()
            host.welcome(fds)
            attached = attach(fds, members)
            host.begin()
        except Exception as error:
            host.refuse(_for_all(who, error))
            raise
    return attached


def _be_guest(
    guest: Guest,
    who: str,
    attach: Callable[[Sequence[int], Sequence[Member]], T],
) -> T:
    with closing(guest):
        fds, members = guest.enter()
        try:
            attached = attach(fds, members)
        except Exception as error:
            guest.refuse(_for_all(who, error))
            raise
        guest.begin()
    return attached


def _for_all(who: str, error: Exception) -> PopdistError:
    if isinstance(error, PopdistError):
        return error
    return ArenaError(
        f"{who} could not join the others: {type(error).__name__}: {error}. "
        "Look above for what it said."
    )
