"""The messages of a meeting: each is one packet, JSON of a kind and a value.

The values are named tuples, because every dataclass adds a millisecond to the start of
a program.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from popdist.errors import (
    ArenaError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    PopdistError,
)

# It goes up when any message or the order of messages changes. A hello alone stays as
# it is for ever, so that members of two versions can tell each other so.
VERSION = 4

# The first message of a joiner, and its message after the welcome.
HELLO, READY = "hello", "ready"
# From the leader: all have connected, with the memory; all have it, begin; which
# members have not connected yet.
WELCOME, BEGIN, MISSING = "welcome", "begin", "missing"
# From any member: the meeting fails for all.
REFUSAL = "refusal"

# Raised by wrong values of a valid packet.
INVALID = (LookupError, TypeError, ValueError)

_REFUSALS: dict[str, type[PopdistError]] = {
    kind.__name__: kind for kind in (ArenaError, MismatchError, CollectiveTimeoutError)
}


class Member(NamedTuple):
    """A process, and when it was started: the numbers of processes are reused."""

    pid: int
    started: int


class MeetingMessage(NamedTuple):
    """A message that has come. Its kind is empty if it is not valid.

    packet: The bytes of the message; none if the peer has closed its end.
    fd: The file descriptor that came with it.
    """

    kind: str
    value: Any
    packet: bytes
    fd: int | None = None

    @classmethod
    def decode(cls, packet: bytes, fd: int | None = None) -> Self:
        try:
            kind, value = json.loads(packet)
        except (*INVALID, RecursionError):
            return cls("", None, packet, fd)
        return cls(str(kind), value, packet, fd)


class Hello(NamedTuple):
    """A member's place, and the group that it expects."""

    rank: int
    size: int
    pid: int
    started: int
    layout: str
    version: int = VERSION

    @classmethod
    def decode(cls, message: MeetingMessage) -> Self | None:
        """Return the hello, or None if another program sent the message."""
        try:
            hello = cls(**message.value)
        except TypeError:
            return None
        are_numbers = all(isinstance(n, int) for n in (*hello[:4], hello.version))
        return hello if are_numbers and message.kind == HELLO else None

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
        if 0 <= self.rank < len(instances):
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
        if self.pid != pid:
            return (
                f"{who} calls itself process {self.pid}, so it is in another PID "
                f"namespace than {leader}. Start the instances of a host in one "
                "container, or in containers that share their PID namespace."
            )
        if self.layout != expected.layout:
            return (
                f"{who} lays the shared memory out as {self.layout!r}, but {leader} as "
                f"{expected.layout!r}. Give all instances the same settings and the "
                "same installation of popdist."
            )
        return None


def encode_refusal(error: PopdistError) -> tuple[str, str, Sequence[int]]:
    """Return the error as a value for the other members, which raise it too."""
    if isinstance(error, PeerLostError):
        return PeerLostError.__name__, str(error), error.instances
    name = type(error).__name__
    return name if name in _REFUSALS else ArenaError.__name__, str(error), ()


def decode_refusal(value: Any) -> PopdistError:
    """Return the error to raise here because of another member.

    Raises:
        LookupError, TypeError, ValueError: No member has written this.
    """
    name, text, instances = value
    if name == PeerLostError.__name__:
        return PeerLostError(text, [int(instance) for instance in instances])
    return _REFUSALS[name](text)
