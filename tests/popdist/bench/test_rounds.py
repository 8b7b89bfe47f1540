"""Candidates are measured in turn, each call on an input that was just written."""

import time
from dataclasses import replace

import numpy as np
import pytest

from popdist.bench import inputs, rounds
from popdist.bench.rounds import Lane, burst, measure
from popdist.bench.tasks import make_task
from tests.popdist.bench.lone_member import LoneMember

SOURCE = inputs.source(8, "float32", 0)
NBYTES = 32


class Spoiler:
    """Overwrites its input, as a reduction in place does, and notes what it found."""

    def __init__(self, name: str, seconds: float = 0.0) -> None:
        self.task = make_task("all_reduce", NBYTES, "float32", 0, 1)
        self.rows = self.task.inputs
        self.seconds = seconds
        self.fresh: list[bool] = []
        self.counts: list[int] = []
        self.lane = Lane(name=name, task=self.task, run=self.run)

    def run(self, count: int) -> None:
        self.counts.append(count)
        for row in self.rows[:count]:
            self.fresh.append(np.array_equal(row, SOURCE))
            row[...] = -1
        time.sleep(self.seconds)


def test_every_call_finds_an_input_that_was_written_since_the_last_one() -> None:
    spoiler = Spoiler("engine")

    burst(LoneMember(), spoiler.lane, calls=150)

    # 64 rows: as many whole passes as fit.
    assert spoiler.counts == [64, 64]
    assert spoiler.fresh == [True] * 128


def test_members_meet_before_every_pass() -> None:
    comm = LoneMember()

    burst(comm, Spoiler("engine").lane, calls=150)

    assert comm.barriers == 2


def test_a_burst_tells_the_time_of_one_call() -> None:
    slow = Spoiler("engine", seconds=0.064)

    seconds = burst(LoneMember(), slow.lane, calls=64)

    assert seconds >= 0.001


def test_rounds_go_on_until_there_are_enough_for_quartiles() -> None:
    slow, slower = Spoiler("engine", 0.01), Spoiler("peer", 0.02)

    samples = measure(
        LoneMember(), [slow.lane, slower.lane], seconds=1e-9, probe=lambda: 0.5
    )

    assert samples.seconds.shape == (5, 2)
    assert (samples.seconds[:, 0] >= 0.01).all()
    assert (samples.seconds[:, 1] >= 0.02).all()
    assert samples.probed.tolist() == [0.5] * 5


def test_another_candidate_begins_each_round() -> None:
    order: list[str] = []
    spoilers = {name: Spoiler(name, 0.003) for name in ("a", "b", "c")}
    lanes = [
        Lane(
            name=name,
            task=spoiler.task.on_arrays(spoiler.rows[:1]),
            run=lambda count, name=name, spoiler=spoiler: (  # type: ignore[misc]
                order.append(name),
                spoiler.run(count),
            ),
        )
        for name, spoiler in spoilers.items()
    ]

    measure(LoneMember(), lanes, seconds=1e-9, probe=lambda: 0.0)

    # Four looks at how long each takes, then the rounds.
    assert "".join(order) == "abc" * 4 + "abc" + "bca" + "cab" + "abc" + "bca"


def test_a_burst_that_is_held_up_does_not_make_the_others_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([0.5, 0.0001, 0.5, 0.0005])
    counts: list[int] = []

    def scripted(_comm: object, _lane: Lane, calls: int) -> float:
        counts.append(calls)
        return next(times, 0.5)

    monkeypatch.setattr(rounds, "burst", scripted)
    measure(LoneMember(), [Spoiler("engine").lane], seconds=1e-9, probe=lambda: 0.0)

    assert counts == [1, 1, 25, 25, *[25] * 5]


@pytest.mark.parametrize("seconds", [0.003, 0.03])
def test_a_call_longer_than_a_burst_is_made_once_in_it(seconds: float) -> None:
    slow = Spoiler("engine", seconds)

    measure(LoneMember(), [slow.lane], seconds=1e-9, probe=lambda: 0.0)

    assert set(slow.counts) == {1}


@pytest.mark.parametrize("reads", [False, True])
def test_the_results_of_a_pass_are_read_only_if_asked_for(
    reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(rounds, "read", lambda results: seen.append(len(results)))
    lane = replace(Spoiler("engine").lane, reads=reads)

    burst(LoneMember(), lane, calls=150)

    assert seen == ([64, 64] if reads else [])
