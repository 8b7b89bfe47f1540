"""The name of a meeting, and the address and keys derived from it."""

# Not hashlib, which takes longer to import than members take to meet.
from _blake2 import blake2b
from collections.abc import Callable
from typing import NamedTuple

from popdist.engine.meet.messages import PROOF_BYTES

# The name itself, or for a joiner a function that looks it up and returns None while
# member 0 has not chosen one. The joiner calls it again until a process listens at the
# address, because the name may belong to an earlier meeting.
GroupName = str | Callable[[], str | None]


class Keys(NamedTuple):
    """Values derived from a group's name; they cannot be computed without the name.

    address: The abstract address at which member 0 listens.
    proof: A joiner sends it to show that it is a member.
    answer: Member 0 sends it to show the same to a joiner of another user.
    """

    address: bytes
    proof: bytes
    answer: bytes


def keys_of(name: str) -> Keys:
    """Derive the address and the proofs from a group's name."""
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
