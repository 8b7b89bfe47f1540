"""The tests' own surroundings: what they start is independent of how they started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Footprint

ALL_IGNORED = """
import os, signal, sys
numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
for number in numbers:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
CHILD_AFTER_CONFTEST = """
import signal, subprocess, conftest
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
subprocess.run(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"], check=True)
"""


def test_what_tests_start_ignores_and_blocks_no_signal() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ALL_IGNORED, CHILD_AFTER_CONFTEST],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert ran.stderr == ""
    # libc refuses to change its own signals (32 and 33), which a parent may ignore.
    changeable = sum(1 << (number - 1) for number in signal.valid_signals())
    masks = dict(line.split(":\t") for line in ran.stdout.splitlines())
    assert masks.keys() == {"SigBlk", "SigIgn"}
    assert [int(mask, 16) & changeable for mask in masks.values()] == [0, 0]


class Looks(Footprint):
    """A footprint that finds at each look what a list says, and its last item on."""

    def __init__(self, looks: list[set[str]]) -> None:
        self._looks = looks

    def processes(self) -> list[str]:
        return []

    def files(self) -> set[str]:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


def test_files_that_are_seen_for_a_moment_are_not_left() -> None:
    another = {"/tmp/poprun-of-another-job"}

    Looks([another, set()]).assert_nothing_is_left(within=20)
    # One look without them is enough, whatever comes after.
    Looks([set(), another]).assert_nothing_is_left(within=0)


def test_files_of_one_job_after_another_are_not_left() -> None:
    looks = [{f"/tmp/poprun-{number}"} for number in range(30)]

    Looks([*looks, set()]).assert_nothing_is_left(within=0.2)


def test_files_that_stay_are_left() -> None:
    with pytest.raises(AssertionError, match=r"left after 0.1 s: \['/tmp/poprun-mine'"):
        Looks([{"/tmp/poprun-mine"}]).assert_nothing_is_left(within=0.1)


SLOW_REPORT = """
import time, pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if item.name == "test_1" and call.when == "call":
        time.sleep(8)
    return (yield)
"""


# The first one has time enough for itself, and would not have for its report.
SLOW_TESTS = """
import time, pytest

@pytest.mark.timeout(6)
def test_1():
    pass

@pytest.mark.timeout(1)
def test_2():
    time.sleep(60)

def test_3():
    pass
"""


def test_a_slow_report_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SLOW_REPORT)
    (tmp_path / "test_slow.py").write_text(SLOW_TESTS)
    settings = Path(__file__).parent.parent / "pyproject.toml"

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", settings, tmp_path],
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert "INTERNALERROR" not in ran.stdout
    assert "1 failed, 2 passed" in ran.stdout


def test_a_run_may_refuse_tests_that_import_a_framework() -> None:
    file = "tests/popdist/engine/test_rows.py"

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "--refuse-import", "tensorflow,torch", file],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert ran.returncode == pytest.ExitCode.INTERRUPTED
    assert "Tests import torch, which --refuse-import forbids." in ran.stdout
