"""Which processes live, as another one sees them."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from poprun.vipu import liveness
from poprun.vipu.leases import Life
from poprun.vipu.liveness import Observer


def test_a_process_lives_until_it_ends() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        identity = liveness.identify(child.pid)
        assert Observer("h1").life(identity, "h1") is Life.ALIVE
        os.kill(child.pid, signal.SIGSTOP)
        assert Observer("h1").life(identity, "h1") is Life.ALIVE
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # A zombie holds nothing.
        assert Observer("h1").life(identity, "h1") is Life.DEAD
    assert Observer("h1").life(identity, "h1") is Life.DEAD
    with pytest.raises(ProcessLookupError):
        liveness.identify(child.pid)


def test_another_process_of_the_same_number_is_not_taken_for_it() -> None:
    earlier = replace(liveness.identify(), start_time=1)

    assert Observer("h1").life(earlier, "h1") is Life.DEAD


def test_what_cannot_be_seen_is_not_guessed() -> None:
    me = liveness.identify()

    earlier = replace(me, boot_id="another-boot")
    assert Observer("h1").life(earlier, "h1") is Life.DEAD
    assert Observer("h1").life(earlier, "h2") is Life.UNKNOWN
    contained = replace(me, pid_namespace="pid:[1]")
    assert Observer("h1").life(contained, "h1") is Life.UNKNOWN


# Prints what a process that lives is called in this time namespace, and whether it and
# the one that the first argument describes live.
SEEN = """
import ast, dataclasses, sys
from poprun.vipu.leases import ProcessIdentity
from poprun.vipu.liveness import Observer, identify, time_since_boot
other = ProcessIdentity(**ast.literal_eval(sys.argv[1]))
print((dataclasses.asdict(identify(other.pid)), Observer("h1").life(other, "h1").name))
print(time_since_boot())
"""


@pytest.mark.parametrize("shift", [-20, 1000])
def test_a_process_is_the_same_in_every_time_namespace(shift: int) -> None:
    me, before = liveness.identify(), liveness.time_since_boot()
    command = ["unshare", "-U", "-r", "-T", f"--boottime={shift}"]
    seen = subprocess.run(
        [*command, sys.executable, "-c", SEEN, repr(asdict(me))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()

    assert seen[0] == repr((asdict(me), "ALIVE"))
    assert before <= float(seen[1]) <= liveness.time_since_boot()
