import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from popdist.session import STATE
from poptorch.data.core_sharing import leave_cores


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("bound_to", "local_instances", "threads"),
    [(8, 1, 7), (8, 2, 3), (8, 8, 1), (6, 2, 5)],
    ids=["alone", "unbound", "one core each", "bound"],
)
def test_an_instance_that_loads_computes_with_the_rest_of_its_share_of_cores(
    monkeypatch: pytest.MonkeyPatch, bound_to: int, local_instances: int, threads: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(bound_to)))
    monkeypatch.setattr("poptorch.data.core_sharing.cores_of_host", lambda: 8)
    place = replace(STATE.job.place, local_size=local_instances)
    monkeypatch.setitem(STATE.__dict__, "job", replace(STATE.job, place=place))
    torch.set_num_threads(9)

    leave_cores(1)
    during = torch.get_num_threads()
    leave_cores(-1)

    assert (during, torch.get_num_threads()) == (threads, 9)
