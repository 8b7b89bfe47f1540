"""Tests of several hosts are skipped where beds cannot be made, and fail in CI."""

import os
import shutil
import subprocess
import sys

import pytest
from beds import rights
from beds.rights import need_beds, reason_against_beds
from conftest import ROOT

REASON = "from beds.rights import reason_against_beds; print(reason_against_beds())"


def reason(*prefix: str) -> str:
    return subprocess.check_output(
        [*prefix, sys.executable, "-c", REASON],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"},
        text=True,
    ).strip()


def test_an_ordinary_user_can_make_no_bed() -> None:
    as_user = ["unshare", "--user", "--map-user=65534"]

    assert reason(*as_user) == "hosts in namespaces need root"


def test_root_without_rights_can_make_no_bed() -> None:
    need_beds()
    no_rights = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]

    assert reason(*no_rights).startswith("root may not make hosts in namespaces: ")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"ip", "tc", "/usr/sbin/sshd"}
    which = shutil.which
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        rights.shutil, "which", lambda name: None if name in missing else which(name)
    )

    assert reason_against_beds.__wrapped__() == (
        "not installed: iproute2, openssh-server"
    )


@pytest.mark.parametrize(
    ("variable", "outcome"),
    [
        ("OTHER", pytest.skip.Exception),
        ("CI", pytest.fail.Exception),
        ("REQUIRE_BEDS", pytest.fail.Exception),
    ],
)
def test_where_beds_are_required_what_is_missing_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, variable: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(rights, "reason_against_beds", lambda slurm: "no sshd")
    for name in ("CI", "REQUIRE_BEDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "true")

    with pytest.raises(outcome, match="no sshd"):
        need_beds()
