"""Random calls, checked, and rounds in which members are killed meanwhile."""

import gc
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from popdist.engine.group import Group
from popdist.errors import PeerLostError
from tests.popdist.engine.members import Me, Members

# Elements: less than a line, one announcement, one block, several blocks.
LENGTHS = (0, 1, 7, 300, 5000, 40_000)
DTYPES = ("float32", "float64", "float16", "int8", "uint32", "bool")

# Longer than this is a hang.
HANGS_S = 200.0


class Wrong(Exception):
    """A call gave a wrong result, or a round left something behind."""


class Mixer:
    """Makes random calls, the same ones on all members with the same seed."""

    def __init__(self, group: Group, seed: int) -> None:
        self._group = group
        self._dice = random.Random(seed)
        self._held = [group.empty(n) for n in (300, 40_000)]
        self._calls: list[Callable[[], None]] = [
            *[self._all_reduce] * 6,
            self._in_the_arena,
            self._grouped,
            self._async,
            self._parts,
            self._gather,
            self._broadcast,
            self._letters,
            group.barrier,
        ]

    def turn(self) -> None:
        """Make one call, and see that its result is right."""
        self._dice.choice(self._calls)()

    def _array(self) -> np.ndarray:
        length, dtype = self._dice.choice(LENGTHS), self._dice.choice(DTYPES)
        return np.full(length, self._group.rank + 1).astype(dtype)

    def _total(self, x: np.ndarray) -> np.ndarray:
        size = self._group.size
        return np.full_like(x, 1 if x.dtype == bool else size * (size + 1) // 2)

    def _see(self, found: np.ndarray, expected: np.ndarray) -> None:
        if not np.array_equal(found, expected):
            raise Wrong(f"{found} instead of {expected} on member {self._group.rank}")

    def _all_reduce(self) -> None:
        x = self._array()
        how = self._dice.choice(["auto", "oneshot", "direct", "ring"])
        out = self._dice.choice([None, x])
        expected = self._total(x)
        self._see(self._group.all_reduce(x, out=out, algorithm=how), expected)

    def _in_the_arena(self) -> None:
        x = self._dice.choice(self._held)
        x[...] = self._group.rank + 1
        self._group.all_reduce(x, out=x, algorithm="direct")
        self._see(x, self._total(x))

    def _grouped(self) -> None:
        xs = [self._array() for _ in range(5)]
        for x, found in zip(xs, self._group.grouped_all_reduce(xs), strict=True):
            self._see(found, self._total(x))

    def _async(self) -> None:
        xs = [self._array() for _ in range(3)]
        handles = [self._group.all_reduce(x, async_op=True) for x in xs]
        for x, handle in zip(xs, handles, strict=True):
            self._see(handle.wait(), self._total(x))

    def _parts(self) -> None:
        x = np.stack([self._array()[:1000]] * self._group.size)
        self._see(self._group.reduce_scatter(x)[0], self._total(x[0]))
        x[...] = self._group.rank
        parts = self._group.all_to_all(x)
        for rank in range(self._group.size):
            self._see(parts[rank], np.full_like(x[0], rank))

    def _gather(self) -> None:
        x = self._array()
        root = self._dice.randrange(self._group.size)
        for found in (self._group.all_gather(x), self._group.gather(x, root)):
            for rank, part in enumerate(found or []):
                self._see(part, np.full(len(x), rank + 1).astype(x.dtype))

    def _broadcast(self) -> None:
        x = self._array()
        root = self._dice.randrange(self._group.size)
        expected = np.full(len(x), root + 1).astype(x.dtype)
        self._see(self._group.broadcast(x, root), expected)
        whole = np.stack([x] * self._group.size)
        mine = whole if self._group.rank == root else None
        self._see(self._group.scatter(mine, root), expected)

    def _letters(self) -> None:
        x, group = self._array(), self._group
        to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        out = np.zeros_like(x)
        if group.rank == 0:
            group.send(x, to)
        group.recv(out, source)
        self._see(out, np.full(len(x), source + 1).astype(x.dtype))
        if group.rank != 0:
            group.send(x, to)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """How many members lived in a round, and how long they were in the dark."""

    size: int
    victims: list[int]
    seconds: float


def play(seed: str) -> Round:
    """Kill members at a random moment; see that all others say so, and what is left.

    Raises:
        Wrong: Their output is another, or something was left.
        TimeoutError: A member hung.
    """
    dice = random.Random(seed)
    size = dice.randint(2, 5)
    victims = dice.sample(range(size), dice.choice([1] * 6 + [size - 1]))
    calls = dice.randrange(1 << 32)

    def member(me: Me) -> None:
        mixer = Mixer(me.join(), calls)
        me.say("in")
        while True:
            mixer.turn()

    before = traces()
    with Members(size, member) as members:
        members.hear_all()
        time.sleep(dice.random() ** 2 * 0.05)
        killed = time.monotonic()
        for victim in victims:
            members.signal(victim, signal.SIGKILL)
        ended = members.finish(HANGS_S)
        seconds = time.monotonic() - killed
    for rank, end in enumerate(ended):
        if rank in victims:
            continue
        lost = end.error.instances if isinstance(end.error, PeerLostError) else ()
        if not lost or not set(lost) <= set(victims) or end.stderr:
            raise Wrong(f"{victims} were killed, but member {rank} said {end}")
    if traces() != before:
        raise Wrong(f"there was {before}, and now there is {traces()}")
    left = Path("/proc/net/unix").read_text()
    if members.name in left:
        raise Wrong(f"a socket is left of {members.name}")
    return Round(size=size, victims=victims, seconds=seconds)


def traces() -> tuple[list[str], list[str], list[int]]:
    """Return what this process has open, what it maps of the engine, its children.

    There is nothing else that could stay: the engine gives nothing a name in a file
    system, and no socket outlives the processes that have it open.
    """
    # The groups and files of other tests go when they are collected, at any time.
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return (
        sorted(os.listdir("/proc/self/fd")),
        [line for line in maps if "memfd:popdist" in line],
        sorted(child.pid for child in psutil.Process().children()),
    )
