"""The name under which the members of a group meet, and what follows from it."""

# Not hashlib, which takes longer to import than members take to meet.
from _blake2 import blake2b
from collections.abc import Callable
from typing import NamedTuple

from popdist.engine.meet.messages import PROOF_BYTES

# The name itself, or for a joiner what looks it up: None while member 0 has not chosen
# one. It is looked up again as long as nothing listens at its address, because it may
# be that of an earlier meeting.
GroupName = str | Callable[[], str | None]


class Keys(NamedTuple):
    """What follows from a group's name; no process can compute it without that.

    address: The abstract address at which member 0 listens.
    proof: What a joiner sends to show that it is a member.
    answer: What member 0 sends to show that to a joiner of another user.
    """

    address: bytes
    proof: bytes
    answer: bytes


def keys_of(name: str) -> Keys:
    """Return what follows from a group's name."""
    return Keys(
        address=address_of(name),
        proof=_digest(name, b"proof", PROOF_BYTES),
        answer=_digest(name, b"answer", PROOF_BYTES),
    )


def address_of(name: str) -> bytes:
    """Return the abstract address that belongs to a name."""
    return b"\0popdist-" + _digest(name, b"address", 20).hex().encode()


def _digest(name: str, purpose: bytes, nbytes: int) -> bytes:
    text = name.encode("utf-8", "surrogateescape")
    return blake2b(text, digest_size=nbytes, person=purpose).digest()
