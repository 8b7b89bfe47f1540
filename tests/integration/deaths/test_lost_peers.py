"""An instance fails, and others fail by its end: poprun names the first one.

The first one leaves its groups a while before it ends: what it has loaded takes time to
end, too.
"""

import json
import sys

import pytest
from conftest import Poprun

pytestmark = pytest.mark.mpi

# What is registered first is called last.
SLOW_END = "import atexit, time\natexit.register(time.sleep, {})\n"

ENGINE = """
import popdist
group = popdist.instance_group()
rank = group.rank
call = group.barrier
leave = group.close
"""
TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group()
rank = dist.get_rank()
call = lambda: dist.all_reduce(torch.ones(4))
leave = dist.destroy_process_group
"""
HOROVOD = """
import torch
import horovod.torch as hvd
hvd.init()
rank = hvd.rank()
call = lambda: hvd.allreduce(torch.ones(4))
leave = hvd.shutdown
"""
FAILS = """
try:
    call()
    if rank == 1:
        raise RuntimeError("no data")
    call()
finally:
    leave()
"""


@pytest.mark.parametrize(
    ("start", "options"),
    [
        pytest.param(ENGINE, [], id="engine"),
        pytest.param(TORCH, ["--torch-backend", "popdist"], id="torch"),
        pytest.param(HOROVOD, ["--emulate-sdk=yes"], id="horovod"),
    ],
)
def test_the_one_that_failed_first_is_named_though_it_ends_last(
    poprun: Poprun, start: str, options: list[str]
) -> None:
    if start is not ENGINE:
        pytest.importorskip("torch")
    text = SLOW_END.format("1 if __import__('os').environ['RANK'] == '1' else 0")

    ran = poprun(
        *("-n", "3", "--offline-mode=yes", "--result", "result.json", *options),
        *(sys.executable, "-c", text + start + FAILS),
    )

    assert ran.code == 1
    assert ran.stderr.splitlines()[-1] == (
        "poprun: error: Instance 1 on localhost exited with code 1: RuntimeError: no "
        "data"
    )
    result = json.loads((poprun.directory / "result.json").read_bytes())
    [attempt] = result["attempts"]
    states = [instance["state"] for instance in attempt["instances"]]
    assert states == ["stopped", "failed", "stopped"]


def test_one_that_closes_its_groups_and_goes_on_does_not_keep_another_from_ending(
    poprun: Poprun,
) -> None:
    goes_on = """
if rank == 1:
    leave()
    time.sleep(600)
call()
"""

    ran = poprun(
        *("-n", "2", "--offline-mode=yes"),
        *(sys.executable, "-c", f"import time\n{ENGINE}{goes_on}"),
    )

    assert ran.code == 1
    cause = ran.stderr.splitlines()[-1]
    assert cause.startswith(
        "poprun: error: Instance 0 on localhost exited with code 1: "
        "popdist.errors.PeerLostError: Instance 1 has ended, or closed the group"
    )


def test_a_signal_handler_that_raises_says_nothing_while_another_end_is_waited_for(
    poprun: Poprun,
) -> None:
    # Instance 1 ends when instance 0 says that it waits for that.
    handler = """
import atexit, os, signal, sys, time
from popdist.engine import endpoint
def end():
    while os.environ["RANK"] == "1" and not os.path.exists("waits"):
        time.sleep(0.01)
def sleep(seconds):
    open("waits", "w").close()
    time.sleep(seconds)
atexit.register(end)
endpoint.sleep = sleep
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
"""

    ran = poprun(
        *("-n", "2", "--offline-mode=yes"),
        *(sys.executable, "-c", handler + ENGINE + FAILS),
    )

    assert ran.stderr.count("Traceback") == 2
    assert "atexit" not in ran.stderr
    assert ran.stderr.splitlines()[-1].endswith("RuntimeError: no data")
