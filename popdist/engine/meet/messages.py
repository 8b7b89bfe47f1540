"""The messages of a meeting, as values and as bytes.

Every message is one packet: a hello, or a code and what belongs to it. The values
are named tuples, because every dataclass adds a millisecond to the start of a program.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

from popdist.errors import (
    ArenaError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    PopdistError,
)

# It goes up when any message or the order of messages changes. A hello alone stays
# as it is for ever, so that members of two versions can tell each other so.
VERSION = 3

# From the leader: all have connected, here is the memory; all have it, begin; some have
# not connected yet. From any member: the meeting fails for all.
WELCOME, BEGIN, NOTICE, REFUSAL = b"W", b"B", b"N", b"R"
# From the leader, to a process of another user that knows the group's name.
OTHER_USER = b"U"
# From a joiner, after the welcome.
READY = b"A"

_MAGIC = b"popdist\0"
PROOF_BYTES = 16
_HELLO = struct.Struct(f"=8sIIIIQ{PROOF_BYTES}s")
_MEMBER = struct.Struct("=IQ")
_RANK = struct.Struct("=I")

_REFUSALS: dict[bytes, type[PopdistError]] = {
    b"a": ArenaError,
    b"m": MismatchError,
    b"t": CollectiveTimeoutError,
}
_LOST = b"l"


class MalformedMessageError(ValueError):
    """A message has no valid format."""


class Member(NamedTuple):
    """A process, and when it was started: the numbers of processes are reused."""

    pid: int
    started: int


class Hello(NamedTuple):
    """A member's place, and the group that it expects.

    proof: Derived from the group's name; the socket's address does not reveal it.
    """

    rank: int
    size: int
    member: Member
    layout: bytes
    version: int = VERSION
    proof: bytes = bytes(PROOF_BYTES)

    def encode(self) -> bytes:
        pid, started = self.member.pid, self.member.started
        head = (_MAGIC, self.version, self.rank, self.size, pid, started)
        return _HELLO.pack(*head, self.proof) + self.layout

    @classmethod
    def decode(cls, message: bytes) -> Self | None:
        """Return the hello, or None if another program sent the message."""
        if len(message) < _HELLO.size or not message.startswith(_MAGIC):
            return None
        _, version, rank, size, pid, started, proof = _HELLO.unpack_from(message)
        return cls(
            version=version,
            rank=rank,
            size=size,
            member=Member(pid=pid, started=started),
            layout=message[_HELLO.size :],
            proof=proof,
        )

    def objection(
        self, expected: "Hello", pid: int, instances: Sequence[int]
    ) -> str | None:
        """Return why this member cannot be in a group with the leader, or None.

        Args:
            expected: The leader's hello.
            pid: The process that sent this one, as the kernel has it.
            instances: The numbers of the members, by rank.
        """
        who, leader = f"Process {pid}", f"instance {instances[0]}"
        if self.rank < len(instances):
            who = f"Instance {instances[self.rank]} (process {pid})"
        if self.version != expected.version:
            return (
                f"{who} speaks version {self.version} of how instances meet, but "
                f"{leader} speaks version {expected.version}. Start all of them with "
                "the same installation of popdist."
            )
        if self.size != expected.size:
            return (
                f"{who} expects a group of {self.size} instances, but {leader} "
                f"expects {expected.size}. All of them must name the same group."
            )
        if not 1 <= self.rank < expected.size:
            return (
                f"Process {pid} says that it is member {self.rank}, but a group of "
                f"{expected.size} has place for 1 to {expected.size - 1} beside "
                f"{leader}."
            )
        if self.member.pid != pid:
            return (
                f"{who} calls itself process {self.member.pid}, so it is in another "
                f"PID namespace than {leader}. Start the instances of a host in one "
                "container, or in containers that share their PID namespace."
            )
        if self.layout != expected.layout:
            return (
                f"{who} lays the shared memory out as {_readable(self.layout)}, but "
                f"{leader} as {_readable(expected.layout)}. Give all instances the "
                "same settings and the same installation of popdist."
            )
        return None


def encode_members(members: Sequence[Member]) -> bytes:
    """Write a table of members, in the order of their ranks."""
    return b"".join(_MEMBER.pack(m.pid, m.started) for m in members)


def decode_members(message: bytes, size: int) -> list[Member]:
    """Decode the result of `encode_members` for so many members.

    Raises:
        MalformedMessageError: It is no such table.
    """
    if len(message) != size * _MEMBER.size:
        raise MalformedMessageError(f"a table of members with {len(message)} bytes")
    rows = _MEMBER.iter_unpack(message)
    return [Member(pid=pid, started=started) for pid, started in rows]


def encode_ranks(ranks: Sequence[int]) -> bytes:
    """Write any number of ranks, or of instances."""
    return b"".join(_RANK.pack(rank) for rank in ranks)


def decode_ranks(message: bytes) -> list[int]:
    """Decode the result of `encode_ranks`.

    Raises:
        MalformedMessageError: It is no such list.
    """
    if len(message) % _RANK.size:
        raise MalformedMessageError(f"a list of ranks with {len(message)} bytes")
    return [rank for (rank,) in _RANK.iter_unpack(message)]


def encode_refusal(error: PopdistError) -> bytes:
    """Return the error as bytes for the other members, which raise it too."""
    text = str(error).encode()
    if isinstance(error, PeerLostError):
        count = _RANK.pack(len(error.instances))
        return _LOST + count + encode_ranks(error.instances) + text
    codes = [code for code, kind in _REFUSALS.items() if type(error) is kind]
    return (codes[0] if codes else b"a") + text


def decode_refusal(message: bytes) -> PopdistError:
    """Return the error to raise here because of another member.

    Raises:
        MalformedMessageError: No member has written this.
    """
    code, rest = message[:1], message[1:]
    lost: list[int] = []
    if code == _LOST:
        count = _RANK.unpack(rest[: _RANK.size])[0] if len(rest) >= _RANK.size else -1
        end = _RANK.size * (1 + count)
        if not _RANK.size <= end <= len(rest):
            raise MalformedMessageError("an error whose instances are cut off")
        lost, rest = decode_ranks(rest[_RANK.size : end]), rest[end:]
    elif code not in _REFUSALS:
        raise MalformedMessageError(f"an error of the unknown kind {code!r}")
    try:
        text = rest.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessageError("an error whose text is not UTF-8") from error
    return PeerLostError(text, lost) if code == _LOST else _REFUSALS[code](text)


def _readable(layout: bytes) -> str:
    text = layout.decode("ascii", errors="replace")
    return repr(text) if text.isascii() and text.isprintable() else layout.hex()
