"""The trace of a job on several hosts, whose clocks are aligned."""

import json
from typing import Any

import pytest
from beds.bed import Bed
from conftest import mpirun_of

pytestmark = pytest.mark.mpi

PROGRAM = """
import glob, time
import numpy as np
import popdist

popdist.init()
group = popdist.instance_group()
for number in range(5):
    with popdist.trace("step"):
        # The hosts share /root. Those that have made a file are about to call.
        if group.rank != 3:
            open(f"/root/step-{number}-{group.rank}", "w").close()
        else:
            while len(glob.glob(f"/root/step-{number}-*")) < 3:
                time.sleep(0.01)
            # On a busy machine they may call late, but in all steps.
            time.sleep(0.05 * 2**number)
        group.all_reduce(np.ones(1000, np.float32))
        group.broadcast(np.ones(10), 0)
"""


def begin(event: dict[str, Any]) -> float:
    return float(event["ts"])


def test_calls_of_all_hosts_are_on_one_clock(bed: Bed) -> None:
    for host in bed.hosts:
        host.path("/tmp/program.py").write_text(PROGRAM)

    ran = bed.front.run(
        *("poprun", "--mpirun", mpirun_of("hydra"), "--offline-mode=yes"),
        *("--host", "h0,h1", "-n", "4", "--trace", "/tmp/trace.json"),
        *("python3", "/tmp/program.py"),
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    file = bed.front.path("/tmp/trace.json")
    document = json.loads(file.read_text())
    file.unlink()
    for host in bed.hosts:
        host.path("/tmp/program.py").unlink()
    bed.front.output("sh", "-c", "rm /root/step-*")
    events: list[Any] = document["traceEvents"]
    calls = [e for e in events if e.get("cat") == "call" and e["name"] == "all_reduce"]
    assert sorted(e["pid"] for e in calls) == sorted([1, 2, 3, 4] * 5)
    # The hosts of a bed have one kernel, and so one clock. On a busy machine another
    # instance may be later than the one that waits for it.
    last = {e["args"]["call"]: e["pid"] - 1 for e in sorted(calls, key=begin)}
    assert [e["args"]["last_to_begin"] for e in calls] == [
        last[e["args"]["call"]] for e in calls
    ]
    assert (len(last), 3 in last.values()) == (5, True)
    [clock] = [text for name, text in document["otherData"].items() if "clock" in name]
    assert abs(float(clock.split(" us")[0])) < 100_000
    lives = {e["args"]["host"] for e in events if e.get("cat") == "life"}
    assert len(lives) == 2
