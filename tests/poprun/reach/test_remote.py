"""Which hosts are this one, and need no agent."""

import os

import pytest

from poprun.errors import HostError
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.reach import remote
from poprun.reach.hosts import LocalPreflight
from poprun.reach.remote import HostAccess, open_hosts

NO_ACCESS = HostAccess(
    ssh="/nonexistent/ssh",
    tell=lambda message: None,
    log=Log(0, lambda text: None),
    show_phase=lambda phase: None,
)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", os.uname().nodename])
def test_this_host_is_known_by_any_of_its_names(name: str) -> None:
    [preflight] = open_hosts([HostSpec(name=name)], {}, NO_ACCESS)

    assert isinstance(preflight, LocalPreflight)


def test_the_name_that_slurm_has_for_this_machine_is_this_machine() -> None:
    environ = {"SLURMD_NODENAME": "gc-poplar-02"}

    [preflight] = open_hosts([HostSpec(name="gc-poplar-02")], environ, NO_ACCESS)

    assert isinstance(preflight, LocalPreflight)


def test_the_names_of_this_machine_are_found_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def own_names() -> list[str]:
        calls.append(1)
        return ["a", "b"]

    monkeypatch.setattr(remote, "own_names", own_names)

    with pytest.raises(HostError, match="a and b are the same machine"):
        open_hosts([HostSpec(name="a"), HostSpec(name="b")], {}, NO_ACCESS)

    assert len(calls) == 1
