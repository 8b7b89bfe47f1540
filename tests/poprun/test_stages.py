"""What poprun does of a job before it imports what supervises it."""

from types import SimpleNamespace
from typing import Any

import pytest

import poprun.attempt
from poprun import stages
from poprun.stdio.stdin import Stdin


def test_the_host_listens_before_mpirun_starts_the_shims_that_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def recorder(**methods: str) -> Any:
        played = {
            name: lambda call=call: calls.append(call) for name, call in methods.items()
        }
        return lambda *_: SimpleNamespace(remember=None, **played)

    monkeypatch.setattr(stages, "LocalHost", recorder(listen="listen"))
    monkeypatch.setattr(stages, "MpirunProcess", recorder(start="start mpirun"))
    monkeypatch.setattr(poprun.attempt, "run_attempt", lambda *_: 7)
    job: Any = SimpleNamespace(stdin=Stdin(), specs=[b"spec"])
    host = SimpleNamespace(name="n0")
    plan: Any = SimpleNamespace(request=SimpleNamespace(hosts=[host]))
    settings = environ = guard = None
    preflights: Any = SimpleNamespace(
        read_memory_counters=lambda hosts: calls.append("read memory")
    )

    code = stages.run_job(job, guard, plan, settings, environ, preflights)  # type: ignore[arg-type]

    assert code == 7
    assert calls == ["read memory", "listen", "start mpirun"]
