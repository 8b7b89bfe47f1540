"""What happens to a job while it runs: the words between launch and those who listen.

launch emits them, stopping decides by them, report and the log tell of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MpirunStarted:
    pid: int


@dataclass(frozen=True, slots=True)
class MpirunExited:
    """mpirun itself ended; the status is that of waitpid."""

    status: int


@dataclass(frozen=True, slots=True)
class GuardLost:
    """The guard died; another takes its place."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The shim of an instance has called."""

    rank: int


@dataclass(frozen=True, slots=True)
class Started:
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The kernel would not run the program: an errno, and what it was about."""

    rank: int
    errno: int
    tried: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A program ended; the status is that of waitpid, the time CLOCK_MONOTONIC."""

    rank: int
    status: int
    at_ns: int
    user_s: float
    system_s: float
    peak_kib: int
    # False if a signal of poprun's or of mpirun's was on its way to it before.
    by_itself: bool


@dataclass(frozen=True, slots=True)
class Clean:
    """Nothing of an instance is left; so many processes had to be ended."""

    rank: int
    left_behind: int


@dataclass(frozen=True, slots=True)
class ShimLost:
    """A shim went away without a word, and its program with it."""

    rank: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody sent poprun a signal that ends the job."""

    signal: int


@dataclass(frozen=True, slots=True)
class OutputClosed:
    """Whoever read poprun's stdout has gone."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    MpirunStarted
    | MpirunExited
    | GuardLost
    | Connected
    | Started
    | Refused
    | Exited
    | Clean
    | ShimLost
    | Interrupted
    | OutputClosed
    | Tick
)
