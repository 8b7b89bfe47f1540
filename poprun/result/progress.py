"""One line that says how far a running job is: events -> text. Pure.

It listens to the events of the job and knows no terminal; the router shows the line.
"""

from collections.abc import Sequence
from math import inf

from poprun.output.terminal import clock
from poprun.supervise.group_calls import GroupCalls
from poprun.wire.events import (
    Event,
    Exited,
    HostJoins,
    HostLost,
    Interrupted,
    MembersChanged,
    ReformAsked,
    ReformEnded,
    Refused,
    ShimLost,
    StacksShown,
    Started,
    StartedAgain,
    UsageMeasured,
)
from poprun.words import counted, describe_instances

# A job that is over sooner needs no line.
FIRST_AFTER_S = 0.5
# A collective in which an instance waits for others for so long is named.
LONG_WAIT_S = 5.0
# A job that has written nothing for so long may be healthy: the line says only that.
LONG_SILENCE_S = 300.0

# A collective, and the instances for which others wait in it.
_Wait = tuple[str, tuple[int, ...]]


class Progress:
    """How many instances of one job have started and ended.

    Args:
        began: When the job did, on the clock that `text` is asked with.
        attempt: The number of its attempt.
        least: The smallest number of instances in a generation.
    """

    def __init__(
        self, instances: int, began: float, attempt: int = 0, least: int = 1
    ) -> None:
        self._instances, self._attempt, self._least = instances, attempt, least
        self._began = began
        self._started: set[int] = set()
        self._ended: set[int] = set()
        self._is_stopping = False
        # The members of the present generation, and those that wait for the next.
        self._members = frozenset(range(instances))
        self._reforming: set[int] = set()
        # The instances that were started later and have not joined the members yet, and
        # since when their programs run.
        self._newcomers: set[int] = set()
        self._joins_since: dict[int, float] = {}
        # The instances that waited in a collective when they were last measured, and
        # since when.
        self._waiting: dict[int, UsageMeasured] = {}
        self._waits_since: dict[int, float] = {}
        self._group_calls = GroupCalls()
        # The continuing waits that `new_stalls` has returned.
        self._reported: set[_Wait] = set()

    def listen(self, event: Event) -> None:
        match event:
            case Started(rank=rank):
                self._started.add(rank)
            case Exited(rank=rank) | Refused(rank=rank) | ShimLost(rank=rank):
                self._ended.add(rank)
                self._reforming.discard(rank)
            case HostLost(ranks=ranks):
                self._ended.update(ranks)
                self._reforming.difference_update(ranks)
            case StartedAgain(rank=rank):
                self._started.discard(rank)
                self._ended.discard(rank)
                # The others do not wait for it.
                self._members -= {rank}
                self._newcomers.add(rank)
            case HostJoins(ranks=ranks):
                self._instances = max(self._instances, *(r + 1 for r in ranks))
                self._started.difference_update(ranks)
                self._ended.difference_update(ranks)
                self._members -= {*ranks}
                self._newcomers.update(ranks)
            case ReformAsked(rank=rank):
                self._reforming.add(rank)
            case ReformEnded(rank=rank):
                self._reforming.discard(rank)
            case MembersChanged(members=members):
                self._members = frozenset(members)
                self._newcomers -= self._members
                self._reforming.clear()
            case Interrupted() | StacksShown():
                self._is_stopping = True
            # Instances that are being stopped wait for nothing.
            case UsageMeasured(rank=rank) if not self._is_stopping:
                self._group_calls.note(event)
                self._waiting.pop(rank, None)
                self._waits_since.pop(rank, None)
                if event.operation and event.waited_s:
                    self._waiting[rank] = event

    def text(self, now: float, last_output: float = -inf) -> str:
        """Return the line, or nothing if it is too early for one.

        Args:
            last_output: When an instance last wrote something.
        """
        elapsed = now - self._began
        if elapsed < FIRST_AFTER_S:
            return ""
        wait = self._wait_to_reform() or self._long_join(now) or self._long_wait(now)
        silent_s = 0.0 if wait else now - max(self._began, last_output)
        attempt = f"attempt {self._attempt}, " if self._attempt else ""
        line = f"{attempt}{wait}{self._phase(silent_s)}"
        return f"poprun: {line} ({clock(int(elapsed))})"

    def _long_wait(self, now: float) -> str:
        """Return the collective that takes long, with the missing instances."""
        for rank, usage in self._waiting.items():
            # It was measured a moment ago, on the clock of its host.
            self._waits_since.setdefault(rank, now - usage.waited_s)
        waiting = self._waits()
        left = waiting.keys() - self._ended
        first = min(left, key=lambda r: (self._waits_since[r], r), default=None)
        if first is None or now < self._waits_since[first] + LONG_WAIT_S:
            return ""
        usage, seconds = waiting[first], int(now - self._waits_since[first])
        others = f" for {describe_instances(usage.missing)}" if usage.missing else ""
        return f"{usage.operation} waits{others} ({clock(seconds)}), "

    def _wait_to_reform(self) -> str:
        """Return which instances wait for others to form the next generation."""
        missing = set(self._members - self._reforming - self._ended)
        if not missing and len(self._reforming) < self._least:
            # The members are too few without those that are being started again.
            missing = {*range(self._instances)} - self._reforming - self._ended
        if not self._reforming or not missing or self._is_stopping:
            return ""
        verb = "waits" if len(self._reforming) == 1 else "wait"
        who = describe_instances(self._reforming)
        return f"{who} {verb} for {describe_instances(missing)} to re-form, "

    def _long_join(self, now: float) -> str:
        """Return which instances run for long and have not asked to join the others."""
        joining = (self._newcomers & self._started) - self._ended - self._reforming
        since = {rank: self._joins_since.get(rank, now) for rank in joining}
        self._joins_since = since
        late = [rank for rank in joining if now >= since[rank] + LONG_WAIT_S]
        if not late or self._is_stopping:
            return ""
        verb = "has" if len(late) == 1 else "have"
        longest = clock(int(now - min(since.values())))
        return f"{describe_instances(late)} {verb} not joined ({longest}), "

    def _waits(self) -> dict[int, UsageMeasured]:
        """Return the instances that waited when they were last measured."""
        usages = {r: self._group_calls.complete(u) for r, u in self._waiting.items()}
        return {rank: usage for rank, usage in usages.items() if usage.waited_s}

    def describe_waits(self) -> list[str]:
        """Return a sentence for each collective in which instances waited last."""
        return [_describe(usages, "had") for usages in self._common_waits().values()]

    def new_stalls(self, least_s: float) -> list[str]:
        """Return a sentence for each collective that takes long, and only once.

        The instances report collectives of popdist themselves.
        """
        stalls = {
            wait: usages
            for wait, usages in self._common_waits().items()
            if usages[0].group and _longest_wait(usages) >= least_s
        }
        new = [usages for wait, usages in stalls.items() if wait not in self._reported]
        self._reported = set(stalls)
        return [_describe(u, "has" if len(u) == 1 else "have") for u in new]

    def _common_waits(self) -> dict[_Wait, list[UsageMeasured]]:
        """Return the instances that wait in one collective for the same others."""
        common: dict[_Wait, list[UsageMeasured]] = {}
        for _, usage in sorted(self._waits().items()):
            if usage.missing:
                common.setdefault((usage.operation, usage.missing), []).append(usage)
        return common

    def _phase(self, silent_s: float) -> str:
        number = len(self._started - self._ended)
        running = f"{counted(number, 'instance')} running"
        ended = f", {len(self._ended)} ended" if self._ended else ""
        every = counted(self._instances, "instance")
        if len(self._ended) == self._instances:
            return f"all {every} ended"
        if self._is_stopping:
            return f"stopping, {running}{ended}"
        if len(self._started | self._ended) < self._instances:
            return f"starting, {number} of {every} running{ended}"
        silence = ""
        if silent_s >= LONG_SILENCE_S:
            silence = f", no output for {int(silent_s / 60)} min; see popctl dump"
        return running + ended + silence


def _longest_wait(usages: Sequence[UsageMeasured]) -> float:
    return max(usage.waited_s for usage in usages)


def _describe(usages: Sequence[UsageMeasured], verb: str) -> str:
    who = describe_instances([usage.rank for usage in usages])
    return (
        f"{who.capitalize()} {verb} waited {_longest_wait(usages):.0f} s in "
        f"{usages[0].operation} for {describe_instances(usages[0].missing)}."
    )
