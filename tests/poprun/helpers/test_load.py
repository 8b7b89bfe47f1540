import os

import pytest

from poprun.helpers.load import timeout_factor


@pytest.mark.parametrize(
    ("load", "times"), [(0.0, 1.0), (4.0, 1.0), (8.0, 2.0), (99.0, 4.0)]
)
def test_a_busy_machine_is_given_longer(
    monkeypatch: pytest.MonkeyPatch, load: float, times: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})

    assert timeout_factor() == times
