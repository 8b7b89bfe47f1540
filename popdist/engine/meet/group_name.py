"""The name of a meeting, and the address that belongs to it."""

# Not hashlib, which takes longer to import than members take to meet.
from _blake2 import blake2b
from collections.abc import Callable

# The name itself, or for a joiner a function that looks it up and returns None while
# member 0 has not chosen one. The joiner calls it again until a process listens at the
# address, because the name may belong to an earlier meeting.
GroupName = str | Callable[[], str | None]


def address_of(name: str) -> bytes:
    """Return the abstract address that belongs to a name.

    The address of another group does not follow from it, nor does the name.
    """
    text = name.encode("utf-8", "surrogateescape")
    digest = blake2b(text, digest_size=20, person=b"address").hexdigest()
    return f"\0popdist-{digest}".encode()
