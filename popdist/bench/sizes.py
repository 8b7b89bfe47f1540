"""The sizes to measure: their notation, and their limit by the memory."""

import argparse
from collections.abc import Sequence

from popdist.engine.shm.memory_limits import in_units, memory_left

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# By powers of four, from 4 B to 256 MiB.
DEFAULT = tuple(4**k for k in range(1, 15))

# How many arrays of a size each member needs at once: the array, the source that it is
# rewritten from, and two for a peer's own allocations.
COPIES = 4


def parse(text: str) -> tuple[int, ...]:
    """Return the sizes in bytes that a list such as `4,1K,64M` names.

    Raises:
        ArgumentTypeError: One of them is no size.
    """
    return tuple(_bytes(word.strip()) for word in text.split(","))


def in_short(nbytes: int) -> str:
    """Return a size as parse() reads it."""
    for unit in ("G", "M", "K"):
        if nbytes % _UNITS[unit] == 0:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)


def fitting(
    sizes: Sequence[int], members: int, copies: int, available: int
) -> tuple[list[int], list[str]]:
    """Return the sizes for which there is memory, and a sentence about each other."""
    fit, sentences = [], []
    for size in sizes:
        # Half of what there is: a bench must not make the machine swap.
        needed = size * members * copies
        if needed <= available // 2:
            fit.append(size)
            continue
        sentences.append(
            f"{in_short(size)} is left out: {members} members would need "
            f"{in_units(needed)} for it, and only half of the {in_units(available)} "
            "that are free may be used. Start fewer instances to measure it."
        )
    return fit, sentences


def available_memory() -> int:
    """Return how many bytes this machine and our memory cgroup have left."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":") for line in file)
    free = int(lines["MemAvailable"].split()[0]) * 1024
    left = memory_left()
    return free if left is None else min(free, left)


def _bytes(word: str) -> int:
    number, unit = word, ""
    if word and word[-1].upper() in _UNITS:
        number, unit = word[:-1], word[-1].upper()
    if not (number.isascii() and number.isdigit() and int(number)):
        raise argparse.ArgumentTypeError(
            f"{word!r} is not a size. A size is a whole number of bytes above 0, "
            "optionally with K, M or G for powers of 1024, as in 4,1K,64M."
        )
    return int(number) * _UNITS[unit]
