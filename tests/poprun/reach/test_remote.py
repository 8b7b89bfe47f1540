"""Which hosts are this one, and need no agent."""

import os
from collections.abc import Mapping, Sequence

import pytest

from poprun.errors import HostError
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.options import grammar
from poprun.options.settings import resolve_settings
from poprun.reach import remote
from poprun.reach.hosts import Preflight
from poprun.reach.remote import HostOpener


def open_hosts(
    hosts: list[HostSpec], environ: Mapping[str, str]
) -> Sequence[Preflight]:
    opener = HostOpener(
        settings=resolve_settings(grammar.parse(["program"]).options, {}),
        environ=environ,
        log=Log(0, lambda text: None),
        show_phase=lambda phase: None,
    )
    return [*opener.open(lambda message: None, hosts).values()]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", os.uname().nodename])
def test_this_host_is_known_by_any_of_its_names(name: str) -> None:
    [preflight] = open_hosts([HostSpec(name=name)], {})

    assert preflight.connection is None


def test_the_name_that_slurm_has_for_this_machine_is_this_machine() -> None:
    environ = {"SLURMD_NODENAME": "gc-poplar-02"}

    [preflight] = open_hosts([HostSpec(name="gc-poplar-02")], environ)

    assert preflight.connection is None


def test_the_names_of_this_machine_are_found_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def own_names() -> list[str]:
        calls.append(1)
        return ["a", "b"]

    monkeypatch.setattr(remote, "own_names", own_names)

    with pytest.raises(HostError, match="a and b are the same machine"):
        open_hosts([HostSpec(name="a"), HostSpec(name="b")], {})

    assert len(calls) == 1
