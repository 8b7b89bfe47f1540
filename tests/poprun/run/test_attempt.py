"""The start of an attempt."""

from unittest.mock import Mock

import pytest

from poprun.errors import HostUnreachableError, LaunchError
from poprun.output.stdin import Stdin
from poprun.run import attempt


def test_the_host_listens_before_mpirun_starts_the_shims_that_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def open_links(*_: object) -> list[Mock]:
        calls.append("listen")
        return []

    mpirun = Mock(start=lambda: calls.append("start mpirun"))
    monkeypatch.setattr(attempt, "open_links", open_links)
    monkeypatch.setattr(attempt, "MpirunProcess", lambda *_: mpirun)
    end = Mock()
    running = Mock(run=lambda *_: end)
    monkeypatch.setattr(attempt, "_RunningAttempt", lambda *_, **named: running)
    job = Mock(stdin=Stdin(), specs=[b"spec"])
    plan = Mock(request=Mock(hosts=[Mock()], names_hosts=False))
    preflights = Mock(read_memory_counters=lambda hosts: calls.append("read memory"))
    context = Mock(hosts=preflights)

    assert attempt.run_attempt(job, Mock(), plan, context, clients=Mock()) is end
    assert calls == ["read memory", "listen", "start mpirun"]


def test_a_host_that_is_lost_before_the_start_is_reported_as_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_links(*_: object) -> list[Mock]:
        raise LaunchError("The host b was lost before the job started.")

    recorder = Mock()
    monkeypatch.setattr(attempt, "open_links", open_links)
    plan = Mock(request=Mock(hosts=[Mock()], names_hosts=False))
    mpirun = Mock()
    monkeypatch.setattr(attempt, "MpirunProcess", lambda *_: mpirun)

    job = Mock(stdin=Stdin())

    with pytest.raises(HostUnreachableError, match="The host b was lost before"):
        attempt.run_attempt(job, Mock(), plan, Mock(recorder=recorder))
    assert not mpirun.start.called
    assert not recorder.begin_attempt.called
