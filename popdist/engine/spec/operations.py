"""The codes of the C core: statuses, operations, algorithms."""

from collections.abc import Callable
from enum import IntEnum

# The core's description of a call: operation, dtype, reduction, algorithm, root, count
# of elements, number of its name, and the operation that it is a prelude to.
Described = tuple[int, int, int, int, int, int, int, int]

# Called at the end of a call with its description, its begin and end in nanoseconds of
# time.monotonic_ns(), and whether it succeeded.
Trace = Callable[[Described, int, int, bool], object]


class Status(IntEnum):
    """How a call ended."""

    DONE = 0
    STOPPED = 1
    ENDED = 2
    TIMED_OUT = 3
    PEER_LOST = 4
    MISMATCH = 5
    END_REQUESTED = 6


class Operation(IntEnum):
    """The code of a call's operation."""

    BARRIER = 0
    ALL_REDUCE = 1
    REDUCE = 2
    REDUCE_SCATTER = 3
    ALL_GATHER = 4
    BROADCAST = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    SEND = 9
    RECEIVE = 10
    # An exchange of requests for calls.
    NEGOTIATION = 11

    @property
    def public_name(self) -> str:
        """Its name as the public functions have it."""
        return "recv" if self is Operation.RECEIVE else self.name.lower()


# No call is a prelude to a barrier, which has no arrays to tell of.
NO_PRELUDE = Operation.BARRIER

# How a reduction is carried out. "auto" lets the core choose by size; "arena" is direct
# on arrays that lie in the arena.
AUTO = -1
ALGORITHMS = {"oneshot": 0, "direct": 1, "ring": 2, "arena": 3}
ALGORITHM_NAMES = {code: name for name, code in ALGORITHMS.items()}
# The choices of a caller. All but the ring keep the reproducible order.
CHOICES = {"auto": AUTO, "oneshot": 0, "direct": 1, "ring": 2}
DIRECT = ALGORITHMS["direct"]
RING = ALGORITHMS["ring"]


def algorithm_code_of(algorithm: str) -> int:
    """Return the code of an algorithm that a caller asks for.

    Raises:
        ValueError: There is none of that name.
    """
    code = CHOICES.get(algorithm)
    if code is None:
        raise ValueError(
            f"The algorithm is {algorithm!r}, but must be one of {', '.join(CHOICES)}."
        )
    return code


# The numbers of the names that this process has used last, and the names of these.
_NUMBERS: dict[str, int] = {}
_NAMES: dict[int, str] = {}
# Both are forgotten after so many, so that they take no more memory.
_MOST_NAMES = 4096


def number_of(name: str | None) -> int:
    """Return the number that stands for a call's name among the members."""
    if name is None:
        return 0
    if not isinstance(name, str):
        raise TypeError(
            f"The name of the call is {name!r}, but must be a text, or None for a call "
            "without a name."
        )
    number = _NUMBERS.get(name)
    if number is None:
        # Not above: it takes longer to import than a group takes to meet.
        from hashlib import blake2b

        text = name.encode("utf-8", "surrogateescape")
        digest = blake2b(text, digest_size=8).digest()
        number = int.from_bytes(digest, "little") or 1
        if len(_NUMBERS) >= _MOST_NAMES:
            _NUMBERS.clear()
            _NAMES.clear()
        _NUMBERS[name], _NAMES[number] = number, name
    return number


def name_of_number(number: int) -> str | None:
    """Return the name of a call that has this number, if this process knows it."""
    return _NAMES.get(number)


def known_names() -> list[tuple[int, str]]:
    """Return the numbers that this process knows the names of, with these."""
    return list(_NAMES.items())


def display_name(name: str | None) -> str:
    """Return a name as errors show it: in ASCII, and not too long."""
    if name is None:
        return "a call without a name"
    text = ascii(name)
    return text if len(text) <= 100 else f"{text[:96]}...'"
