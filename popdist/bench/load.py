"""Busy processes beside the members, as on a machine with other work."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# Ends with its parent, even if the parent is killed, and runs on all cores, even if the
# parent is bound to one.
_BUSY = """
import os, sys
os.sched_setaffinity(0, range(os.cpu_count()))
sys.stdout.write("busy\\n")
sys.stdout.flush()
while os.getppid() == int(sys.argv[1]):
    for _ in range(100000):
        pass
"""


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[list[int]]:
    """Run so many busy processes; yield their pids once all of them are busy."""
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid())]
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(count):
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            if process.stdout is None or process.stdout.readline() != "busy\n":
                raise RuntimeError(f"The busy process {process.pid} did not start.")
        yield [process.pid for process in started]
