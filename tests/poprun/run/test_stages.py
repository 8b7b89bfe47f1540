"""The start of an attempt."""

from unittest.mock import Mock

import pytest

from poprun.output.stdin import Stdin
from poprun.run import stages
from poprun.run.attempt import Attempted


def test_the_host_listens_before_mpirun_starts_the_shims_that_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    host = Mock(listen=lambda: calls.append("listen"))
    mpirun = Mock(start=lambda: calls.append("start mpirun"))
    monkeypatch.setattr(stages, "LocalHost", lambda *_: host)
    monkeypatch.setattr(stages, "MpirunProcess", lambda *_: mpirun)
    end = Attempted(exit_code=7)
    monkeypatch.setattr(stages, "supervise_attempt", lambda *_, **named: end)
    job = Mock(stdin=Stdin(), specs=[b"spec"])
    plan = Mock(request=Mock(hosts=[Mock()], names_hosts=False))
    preflights = Mock(read_memory_counters=lambda hosts: calls.append("read memory"))
    context = Mock(hosts=preflights)

    assert stages.run_attempt(job, Mock(), plan, context) is end
    assert calls == ["read memory", "listen", "start mpirun"]
