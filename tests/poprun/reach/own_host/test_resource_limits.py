import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import POPRUN

from poprun.errors import LaunchError
from poprun.reach.own_host import resource_limits


def test_a_machine_without_proc_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(path: str) -> list[str]:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "listdir", fail)

    with pytest.raises(LaunchError) as caught:
        resource_limits.raise_descriptor_limit(1, 0)

    assert str(caught.value) == (
        "poprun finds the processes of a job through /proc, which cannot "
        "be read: No such file or directory. Mount it with 'mount -t proc "
        "proc /proc'."
    )


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="only root may unmount, and not in every container",
)
def test_poprun_without_proc_ends_with_that_sentence() -> None:
    script = f"umount -l /proc && exec {POPRUN} --mpirun local true"

    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True
    )

    assert ended.returncode == 125, ended.stderr
    assert ended.stderr.startswith("poprun: error: poprun finds the processes of a job")
    assert ended.stderr.count("\n") == 1


def run_limited(
    argv: Sequence[object], cwd: Path
) -> "subprocess.CompletedProcess[str]":
    """Run a command that may open 256 files, and 512 if it raises the limit."""
    return subprocess.run(
        [*map(str, argv)],
        cwd=cwd,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512)),
    )


def run_on_hosts(
    cwd: Path, names: str, ssh: str, *words: str
) -> "subprocess.CompletedProcess[str]":
    """Run a job with shell commands that print the hosts, and in place of ssh."""
    for name, command in (("names.sh", names), ("ssh", ssh)):
        file = cwd / name
        file.write_text(f"#!/bin/sh\n{command}\n")
        file.chmod(0o700)
    hosts = "--host-discovery-script", cwd / "names.sh", "--ssh", cwd / "ssh"
    return run_limited([POPRUN, *hosts, "--mpirun", "local", *words], cwd)


@pytest.mark.parametrize(
    ("num_hosts", "printed"),
    [
        (90, "256"),
        (93, "512"),
        (220, "512"),
        (
            221,
            "poprun needs 514 open files for 221 hosts, 2 for each, but the hard limit "
            "is 512. Raise it with 'ulimit -Hn', or name fewer hosts.",
        ),
    ],
)
def test_connections_to_hosts_get_the_limit_that_they_need(
    tmp_path: Path, num_hosts: int, printed: str
) -> None:
    program = (
        "import resource\n"
        "from poprun.reach.own_host.resource_limits import allow_connections\n"
        "try:\n"
        f"    allow_connections({num_hosts})\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )

    ended = run_limited([sys.executable, "-c", program], tmp_path)

    assert ended.stdout == f"{printed}\n", ended.stderr


def test_a_job_on_too_many_hosts_is_refused_before_any_is_connected(
    tmp_path: Path,
) -> None:
    ended = run_on_hosts(
        tmp_path,
        "seq --format=h%g 10000",
        f"touch {tmp_path}/connected",
        *("-n", "2", "true"),
    )

    assert ended.returncode == 125, ended.stderr
    assert re.fullmatch(
        r"poprun: error: poprun needs \d+ open files for 10000 hosts, 2 for each, but "
        "the hard limit is 512. Raise it with 'ulimit -Hn', or name fewer hosts.\n",
        ended.stderr,
    )
    assert not (tmp_path / "connected").exists()


def test_instances_have_the_limit_of_the_caller_after_connections_to_many_hosts(
    tmp_path: Path,
) -> None:
    ended = run_on_hosts(
        tmp_path,
        "echo localhost; seq --format=h%g 150",
        "echo No route to host >&2; exit 255",
        *("-n", "2", "--min-instances", "1", "sh", "-c", "ulimit -Sn"),
    )

    assert (ended.returncode, ended.stdout) == (0, "256\n"), ended.stderr
