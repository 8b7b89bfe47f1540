"""A process that has re-formed many times has no more than after the first times."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.elastic_jobs import Coordinator

TIMES = 200
# Counts what the process has after 20 re-formings and more, and after the last one.
BODY = f"""
import gc
from popdist import elastic
assert not elastic.refusal()

def holdings():
    gc.collect()
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{{number}}"))
        except FileNotFoundError:
            # The descriptor of this list.
            continue
    with open("/proc/self/maps") as maps:
        arenas = sum("popdist-arena" in line for line in maps)
    return {{
        "descriptors": len(links),
        "arenas": sum("popdist-arena" in link for link in links),
        "maps of arenas": arenas,
        "threads": threading.active_count(),
    }}

# The most that it has at one time: threads open and close files a moment later.
before = {{}}
for times in range({TIMES}):
    popdist.init()
    group = popdist.instance_group()
    array = popdist.empty(1000)
    array[:] = 1.0
    total = group.all_reduce(array)
    assert total[0] == group.size
    handle = group.all_reduce(np.ones(300_000), async_op=True)
    assert handle.wait()[-1] == group.size
    collectives.allReduceSum(np.ones(3), "a name", async_op=True).wait()
    if 20 <= times < 40:
        for name, count in holdings().items():
            before[name] = max(count, before.get(name, 0))
    del group, array, total, handle
    elastic.reform()
assert elastic.generation() == {TIMES}
popdist.init()
group = popdist.instance_group()
total = group.all_reduce(popdist.zeros(1000))
collectives.allReduceSum(np.ones(3), "a name", async_op=True).wait()
print(before)
until = time.monotonic() + 200
while True:
    after = holdings()
    grown = [name for name in before if after[name] > before[name]]
    if not grown or time.monotonic() > until:
        break
    time.sleep(0.05)
print(after)
print(grown)
group.barrier()
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("per_host", [(2,), (1, 1)])
def test_nothing_is_left_of_earlier_generations(
    tmp_path: Path, per_host: Sequence[int]
) -> None:
    with Coordinator(tmp_path, per_host, BODY) as job:
        ended = job.finish(500)

    assert [(one.code, one.err) for one in ended] == [(0, "")] * len(ended), ended
    assert [one.out.splitlines()[-1] for one in ended] == ["[]"] * len(ended), ended
