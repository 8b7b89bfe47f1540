"""Members of a group as forked processes, which run a function of the test.

A fork has the test's functions and arrays at once, and no interpreter to start. What
a member returns, raises or says comes back through a pipe.
"""

import faulthandler
import os
import pickle
import random
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from popdist.engine.group import Group
from popdist.engine.meet.meeting import Meeting
from popdist.engine.shm.shm_transport import ShmTransport
from popdist.engine.transport import Transport
from popdist.engine.tuning import Tuning
from poprun.host.calls_in_progress import read_calls

# Small enough that arrays need several blocks, and without much spinning: members
# outnumber the cores in most tests.
SMALL = Tuning(oneshot_bytes=2048, block_bytes=1 << 16, spin_us=4)

# How long a test waits for what should take much less.
LONG = 200.0

# A little longer, so that a group's own error, which says more, comes first.
LONGER = 240.0

# What most members work on: a line or two, and some blocks.
ONES = np.ones(10, np.float32)
MANY = np.ones(1 << 16, np.float32)


# What carries the rows of groups here.
MEET: Callable[..., Transport] = ShmTransport.meet


def group_of(
    name: str,
    rank: int,
    size: int,
    *,
    replicas: Sequence[int] | None = None,
    algorithm: str = "auto",
    **settings: Any,
) -> Group:
    """Return the group of all members."""
    how = {each: settings.pop(each) for each in ("simd", "tuning") if each in settings}
    settings.setdefault("instances", range(size))
    transport = MEET(Meeting(name, rank, **settings), **how)
    return Group(transport, replicas=replicas, algorithm=algorithm)


class Me:
    """What a member's function gets: its place, and a line to the test."""

    def __init__(self, name: str, rank: int, size: int, line: Connection) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self._line = line

    def join(self, **settings: Any) -> Group:
        """Return the group of all members, as the test's settings make it."""
        usual = {"timeout": LONG, "stall": LONG, "tuning": SMALL}
        return group_of(self.name, self.rank, self.size, **usual | settings)

    def say(self, what: Any) -> None:
        self._line.send(("said", what))

    def hear(self) -> Any:
        return self._line.recv()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a member ended. Its code is negative if a signal ended it."""

    code: int
    value: Any
    error: BaseException | None
    stderr: str


class Members:
    """Processes that each run `function(me)`. Those left at the end are killed."""

    def __init__(
        self, size: int, function: Callable[[Me], Any], *, name: str = ""
    ) -> None:
        self.size = size
        self.name = (
            name or f"test-{os.getpid()}-{random.SystemRandom().getrandbits(48)}"
        )
        self.pids: list[int] = []
        self._lines: list[Connection] = []
        self._stderr: list[int] = []
        self._codes: dict[int, int] = {}
        self._last: dict[int, tuple[str, Any]] = {}
        for rank in range(size):
            self._fork(rank, function)

    def __enter__(self) -> "Members":
        return self

    def __exit__(self, *_: object) -> None:
        for rank, pid in enumerate(self.pids):
            if rank not in self._codes:
                os.kill(pid, signal.SIGKILL)
                self._reap(rank)
        for line in self._lines:
            line.close()
        for fd in self._stderr:
            os.close(fd)

    def _fork(self, rank: int, function: Callable[[Me], Any]) -> None:
        ours, theirs = Pipe()
        stderr = os.memfd_create("stderr")
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                for line in (*self._lines, ours):
                    line.close()
                os.dup2(stderr, 2)
                # pytest has put something else in its place.
                sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
                faulthandler.enable(sys.stderr)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                code = _live(Me(self.name, rank, self.size, theirs), function, theirs)
            finally:
                os._exit(code)
        theirs.close()
        self.pids.append(pid)
        self._lines.append(ours)
        self._stderr.append(stderr)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def tell(self, rank: int, what: Any) -> None:
        self._lines[rank].send(what)

    def hear(self, rank: int) -> Any:
        """Return what this member says next."""
        if not self._lines[rank].poll(LONG):
            raise TimeoutError(f"Member {rank} said nothing for {LONG:g} s.")
        kind, what = self._lines[rank].recv()
        if kind == "said":
            return what
        self._last[rank] = kind, what
        raise AssertionError(f"Member {rank} {kind} {what!r} instead of speaking.")

    def hear_all(self) -> list[Any]:
        return [self.hear(rank) for rank in range(self.size)]

    def finished(self, ranks: Sequence[int]) -> bool:
        """Return whether these members have ended."""
        for rank in ranks:
            while rank not in self._codes and self._lines[rank].poll():
                if not self._listen(rank):
                    self._reap(rank)
        return all(rank in self._codes for rank in ranks)

    def stderr(self, rank: int) -> str:
        fd = self._stderr[rank]
        return os.pread(fd, os.fstat(fd).st_size, 0).decode()

    def finish(self, timeout: float = LONGER) -> list[Ended]:
        """Wait until all have ended, and return how.

        Raises:
            TimeoutError: One has not.
        """
        deadline = time.monotonic() + timeout
        waiting = {rank for rank in range(self.size) if rank not in self._codes}
        with selectors.DefaultSelector() as selector:
            for rank in waiting:
                selector.register(self._lines[rank], selectors.EVENT_READ, rank)
            while waiting:
                left = deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    stacks = "\n".join(self._stacks(rank) for rank in sorted(waiting))
                    raise TimeoutError(
                        f"{sorted(waiting)} live after {timeout:g} s.\n{stacks}"
                    )
                for key, _ in ready:
                    if not self._listen(key.data):
                        selector.unregister(self._lines[key.data])
                        self._reap(key.data)
                        waiting.remove(key.data)
        return [self._ended(rank) for rank in range(self.size)]

    def _stacks(self, rank: int) -> str:
        """End a member, and return what it was at."""
        os.kill(self.pids[rank], signal.SIGABRT)
        os.kill(self.pids[rank], signal.SIGCONT)
        self._reap(rank)
        return f"Member {rank}: {self.stderr(rank)}"

    def _listen(self, rank: int) -> bool:
        try:
            kind, what = self._lines[rank].recv()
        except (EOFError, ConnectionResetError):
            return False
        if kind != "said":
            self._last[rank] = kind, what
        return True

    def _reap(self, rank: int) -> None:
        _, status = os.waitpid(self.pids[rank], 0)
        self._codes[rank] = os.waitstatus_to_exitcode(status)

    def _ended(self, rank: int) -> Ended:
        kind, what = self._last.get(rank, ("ended", None))
        return Ended(
            code=self._codes[rank],
            value=what if kind == "returned" else None,
            error=what if kind == "raised" else None,
            stderr=self.stderr(rank),
        )


def _live(me: Me, function: Callable[[Me], Any], line: Connection) -> int:
    try:
        line.send(("returned", function(me)))
    except BaseException as error:
        # The test knows which errors it expects, and shows all others.
        error.add_note(f"Raised in member {me.rank}.")
        line.send(("raised", _portable(error)))
        return 1
    finally:
        sys.stderr.flush()
    return 0


def _portable(error: BaseException) -> BaseException:
    """Return the error, or one with its text if it cannot be sent as it is."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return AssertionError("".join(traceback.format_exception(error)))
    return error


def run(
    size: int, function: Callable[[Me], Any], timeout: float = LONGER
) -> list[Ended]:
    """Run a whole group to its end."""
    with Members(size, function) as members:
        return members.finish(timeout)


def results(
    size: int, function: Callable[[Me], Any], timeout: float = LONGER
) -> list[Any]:
    """Return what all members return; an error of one is the test's."""
    ended = run(size, function, timeout)
    for member in ended:
        if member.error is not None:
            raise member.error
    assert [(member.code, member.stderr) for member in ended] == [(0, "")] * size
    return [member.value for member in ended]


def errors(ended: Sequence[Ended]) -> list[tuple[type, str] | None]:
    """Return the type and the words of the error of each member that has one."""
    return [(type(e.error), str(e.error)) if e.error else None for e in ended]


def waits_in(pid: int, number: int) -> bool:
    """Return whether a member waits in its call with this number."""
    calls = read_calls(pid)
    return any(c.num_calls == number and c.waits_since is not None for c in calls)


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the type and the text of the error that a call raises."""
    try:
        value = call()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"No error was raised, but {value!r} was returned.")


class Pool:
    """A group that lives for many tests: its members do what they are told.

    Functions are told by their names, so they must stand at the top of a module.
    """

    def __init__(self, size: int, **settings: Any) -> None:
        self.size = size

        def serve(me: Me) -> None:
            group = me.join(**settings)
            while (told := me.hear()) is not None:
                function, arguments = told
                try:
                    me.say((function(group, *arguments), None))
                except Exception as error:
                    me.say((None, error))
            group.close()

        self._members = Members(size, serve)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        with self._members as members:
            for rank in range(self.size):
                members.tell(rank, None)
            members.finish()

    def call(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Return function(group, *arguments[rank]) of every member."""
        for rank in range(self.size):
            self._members.tell(rank, (function, arguments[rank]))
        said = self._members.hear_all()
        for _, error in said:
            if error is not None:
                raise error
        return [value for value, _ in said]
