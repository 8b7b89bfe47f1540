"""Instances die at random moments, and come back: no sum is wrong, and none hangs."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.elastic_jobs import Coordinator, wait_until

# Each step adds a sum of all members to the weights. Whenever the members change, all
# compare hashes of their weights.
BODY = """
import hashlib
from popdist import elastic
index = int(os.environ["TEST_INDEX"])
state = elastic.State(step=0, weights=np.zeros(50_000), large=np.zeros(10))
print("ready", flush=True)

@elastic.run
def train(state):
    group = popdist.instance_group()
    digest = np.frombuffer(hashlib.sha256(state.weights.tobytes()).digest(), np.uint8)
    digests = group.all_gather(digest)
    assert all((one == digests[0]).all() for one in digests), "weights differ"
    assert (state.weights == state.step).all(), (state.step, state.weights)
    indices = [int(row[0]) for row in group.all_gather(np.array([index]))]
    assert indices == sorted(set(indices)) and indices[group.rank] == index
    print("members", elastic.generation(), indices, flush=True)
    while True:
        count = (3, 300_000)[state.step % 2]
        sums = group.all_reduce(np.full(count, index + 1.0))
        assert (sums == sum(indices) + len(indices)).all(), (sums, indices)
        is_over = os.path.exists(OVER)
        named = collectives.allReduceSum(np.array([1.0, is_over]), "over")
        assert named[0] == group.size
        state.weights = state.weights + sums[:1] / sums[:1]
        state.step += 1
        state.commit()
        if named[1]:
            return

train(state)
print("steps", state.step, state.weights[0], flush=True)
"""


class _Monkey:
    """Kills members of a job, and starts them again, by the numbers of a seed."""

    def __init__(self, job: Coordinator, seed: int, least: int) -> None:
        self.job, self.dice, self.least = job, random.Random(seed), least
        self.dead: set[int] = set()

    def strike(self) -> None:
        """Kill one or two members, or start one that is dead."""
        alive = sorted({*self.job.state.living_members} - self.dead)
        most = len(alive) - self.least
        if self.dead and (most <= 0 or self.dice.random() < 0.4):
            index = self.dice.choice(sorted(self.dead))
            self.dead.discard(index)
            self.job.add(index)
        elif most > 0:
            count = min(most, self.dice.choice([1, 1, 1, 2]))
            victims = self.dice.sample(alive, count)
            if not any(map(self.has_state, set(alive) - set(victims))):
                return
            for index in victims:
                self.job.kill(index)
                self.dead.add(index)

    def has_state(self, index: int) -> bool:
        return "members" in self.job.output(index)

    def wait(self) -> None:
        """Wait a moment: sometimes within a meeting, sometimes until all have met."""
        if self.dice.random() < 0.5:
            time.sleep(self.dice.random() * 0.3)
            return
        generation = self.job.generation
        step = time.monotonic() + 1.0
        wait_until(lambda: self.job.generation > generation or time.monotonic() > step)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("per_host", "seed"), [((4,), 1), ((4,), 2), ((2, 2), 3), ((1, 1, 1), 4)]
)
def test_the_sums_of_those_that_live_are_right_whoever_dies(
    tmp_path: Path, per_host: Sequence[int], seed: int
) -> None:
    over = tmp_path / "over"
    body = BODY.replace("OVER", repr(str(over)))
    with Coordinator(tmp_path, per_host, body) as job:
        indices = range(sum(per_host))
        wait_until(lambda: all("members 0" in job.output(i) for i in indices))
        monkey = _Monkey(job, seed, least=2)
        for _ in range(12):
            monkey.strike()
            monkey.wait()
        # Instances that joined when the others are done would be refused.
        wait_until(lambda: not job.state.newcomers)
        over.touch()
        ended = job.finish()

    survivors = [one for one in ended if one.code != -9]
    assert [one.code for one in survivors] == [0] * len(survivors), ended
    last = {one.out.splitlines()[-1] for one in survivors}
    assert len(last) == 1, ended
    assert len(survivors) >= 2
