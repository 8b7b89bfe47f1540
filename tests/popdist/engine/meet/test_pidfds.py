import os
import subprocess
from collections.abc import Iterator

import pytest

from popdist.engine.meet.pidfds import Pidfd


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def pidfd_of(child: subprocess.Popen[bytes]) -> Pidfd:
    return Pidfd(child.pid, os.pidfd_open(child.pid))


def test_a_process_whose_pidfd_the_program_has_closed_has_not_ended(
    child: subprocess.Popen[bytes],
) -> None:
    pidfd = pidfd_of(child)
    os.close(pidfd.fileno())

    assert not pidfd.has_ended


def test_a_zombie_has_ended(child: subprocess.Popen[bytes]) -> None:
    pidfd = pidfd_of(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert pidfd.has_ended


def test_a_process_that_was_reaped_has_ended(child: subprocess.Popen[bytes]) -> None:
    pidfd = pidfd_of(child)
    child.kill()
    child.wait()

    assert pidfd.has_ended


def test_a_process_has_ended_whose_pid_another_one_has(
    child: subprocess.Popen[bytes],
) -> None:
    pidfd = pidfd_of(child)
    pidfd.started -= 1

    assert pidfd.has_ended
