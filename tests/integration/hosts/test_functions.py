"""poprun.launch and poprun.run_command on several hosts."""

import pytest
from beds.bed import Bed
from conftest import BIN

pytestmark = pytest.mark.mpi

OPTIONS = ["--mpirun=local", "--offline-mode=yes", "--host=h0,h1,h2"]


def call(bed: Bed, text: str) -> str:
    """Run a program on the first host, which must succeed; return its output."""
    return bed.front.output(f"{BIN}/python", "-c", f"OPTIONS = {OPTIONS}\n{text}")


def test_a_function_is_called_on_other_hosts(bed: Bed) -> None:
    text = """
import poprun

def where(data):
    import os, popdist, socket
    return popdist.getInstanceIndex(), socket.gethostname(), data[::-1], os.getcwd()

data = bytes(range(256)) * 10_000
results = poprun.launch(where, data, num_instances=6, options=OPTIONS)
print([(index, host, cwd) for index, host, _, cwd in results])
print(all(copy == data[::-1] for _, _, copy, _ in results))
"""
    hosts = [(rank, f"h{rank // 2}", "/root") for rank in range(6)]

    assert call(bed, text) == f"{hosts}\nTrue\n"


def test_an_exception_on_another_host_is_the_cause(bed: Bed) -> None:
    text = """
import poprun

class BadLuckError(Exception):
    pass

def fail():
    import popdist
    if popdist.getInstanceIndex() == 2:
        raise BadLuckError("today", popdist.getInstanceIndex())

try:
    poprun.launch(fail, num_instances=3, options=[*OPTIONS, "--max-restarts=1"])
except poprun.JobFailedError as error:
    print(error)
    print(repr(error.__cause__), error.result.failed_instance)
"""

    assert call(bed, text) == (
        "Instance 2 on h2 exited with code 1: BadLuckError: ('today', 2)\n"
        "BadLuckError('today', 2) 2\n"
    )


def test_a_function_may_call_a_command_on_the_same_hosts(bed: Bed) -> None:
    text = """
import poprun

def run(options):
    import popdist, poprun
    if popdist.getInstanceIndex():
        return "first"
    words = [*options, "-n", "3", "sh", "-c", "echo $RANK $(hostname)"]
    return sorted(poprun.run_command(words, capture_output=True).stdout.split("\\n"))

print(poprun.launch(run, OPTIONS, num_instances=3, options=OPTIONS))
"""

    assert call(bed, text) == "[['', '0 h0', '1 h1', '2 h2'], 'first', 'first']\n"
