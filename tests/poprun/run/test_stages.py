"""What poprun does of a job before it imports what supervises it."""

import subprocess
import sys
from unittest.mock import Mock

import pytest

from poprun.output.stdin import Stdin
from poprun.run import attempt, stages
from poprun.run.attempt import AttemptEnd


def test_the_host_listens_before_mpirun_starts_the_shims_that_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    host = Mock(listen=lambda: calls.append("listen"))
    mpirun = Mock(start=lambda: calls.append("start mpirun"))
    monkeypatch.setattr(stages, "LocalHost", lambda *_: host)
    monkeypatch.setattr(stages, "MpirunProcess", lambda *_: mpirun)
    end = AttemptEnd(exit_code=7)
    monkeypatch.setattr(attempt, "supervise_attempt", lambda *_, **named: end)
    job = Mock(stdin=Stdin(), specs=[b"spec"])
    plan = Mock(request=Mock(hosts=[Mock()], names_hosts=False))
    preflights = Mock(read_memory_counters=lambda hosts: calls.append("read memory"))
    context = Mock(hosts=preflights)

    assert stages.run_attempt(job, Mock(), plan, context) is end
    assert calls == ["read memory", "listen", "start mpirun"]


def test_nothing_slow_is_imported_before_mpirun_starts() -> None:
    slow = {"json", "socket", "subprocess"}
    later = {
        "poprun.run.attempt",
        "poprun.supervise.supervisor",
        "poprun.output.router",
    }
    code = "import sys; import poprun.run, poprun.run.stages; print(*sys.modules)"

    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert (slow | later) & set(ran.stdout.split()) == set()
