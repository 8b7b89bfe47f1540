"""Which hosts are this one, and need no agent."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poprun.errors import HostError
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.options import grammar
from poprun.options.settings import resolve_settings
from poprun.reach import remote
from poprun.reach.hosts import Preflight
from poprun.reach.remote import HostOpener
from poprun.wire.machine import machine_id


def opener_with(environ: Mapping[str, str], *options: str) -> HostOpener:
    return HostOpener(
        settings=resolve_settings(grammar.parse([*options, "program"]).options, {}),
        environ=environ,
        log=Log(0, lambda text: None),
        show_phase=lambda phase: None,
    )


def open_hosts(
    hosts: list[HostSpec], environ: Mapping[str, str]
) -> Sequence[Preflight]:
    opener = opener_with(environ)
    return [*opener.open(hosts).values()]


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


def test_an_elastic_job_has_a_machine_once_under_the_first_of_its_names() -> None:
    names = ["localhost", os.uname().nodename]
    first, second = (HostSpec(name=name) for name in names)
    failures: dict[HostSpec, str] = {}
    opener = replace(opener_with({}), failures=failures)

    assert list(opener.open([first, second])) == [first]
    assert failures == {
        second: f"The host {names[1]} cannot join the job: it is poprun's own machine."
    }


def test_nodes_that_slurm_has_added_are_reached_by_srun(tmp_path: Path) -> None:
    for program in ("srun", "ssh"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n1",
        "PATH": str(tmp_path),
    }
    added = HostSpec(name="n2")

    def failure(*options: str) -> str:
        opener = opener_with(environ, "--synchronise-python-venv=yes", *options)
        return opener.probe([added], [], [])[added]

    assert "srun cannot start a step on it" in failure()
    assert "srun" not in failure("--host", "n1,n2")


def test_the_reason_for_a_host_without_its_copies_is_that_of_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def copy_to_hosts(*arguments: Any) -> None:
        failures = arguments[-1]
        failures[away] = "The disk of away is full."

    monkeypatch.setattr(remote, "copy_to_hosts", copy_to_hosts)
    monkeypatch.setattr(remote, "own_names", lambda: ["here"])
    away, here = HostSpec(name="away"), HostSpec(name="here")
    opener = opener_with(os.environ, "--sync", ".", "--ssh", "true")

    assert opener.probe([away, here], [], [machine_id()], synced=()) == {
        away: "The disk of away is full.",
        here: "The host here cannot join the job: it is poprun's own machine.",
    }
