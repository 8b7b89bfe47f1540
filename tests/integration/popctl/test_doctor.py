"""popctl doctor on this machine, on broken ones, and for several hosts."""

import json
import os
import subprocess
from typing import Any

import pytest
from beds.bed import Bed
from conftest import BIN, ROOT, Poprun

pytestmark = pytest.mark.mpi

POPCTL = str(BIN / "popctl")


def doctor(
    poprun: Poprun, *before: str, **environ: str
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run it, and return its exit code and the checks by name."""
    ran = subprocess.run(
        [*before, POPCTL, "doctor", "--json"],
        cwd=poprun.directory,
        env={**poprun.environ, **environ},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=200,
        check=False,
    )
    [host] = json.loads(ran.stdout)["hosts"]
    return ran.returncode, {check["name"]: check for check in host["checks"]}


def test_a_sound_machine_fails_no_check_and_runs_both_jobs(poprun: Poprun) -> None:
    code, checks = doctor(poprun)

    assert code == 0
    assert checks["two instances"]["status"] == "PASS"
    assert checks["two instances"]["text"].startswith("both instances printed")
    assert checks["all-reduce"]["status"] == "PASS"
    assert "among 2 instances" in checks["all-reduce"]["text"]


def test_variables_of_the_users_jobs_change_no_check(poprun: Poprun) -> None:
    code, checks = doctor(
        poprun,
        POPRUN_TAG_FORMAT="{instance}: ",
        POPRUN_NUM_REPLICAS="7",
        POPRUN_DRY_RUN="yes",
        POPRUN_HOST="nowhere",
    )

    assert code == 0, checks
    assert checks["two instances"]["text"].startswith("both instances printed")
    assert checks["all-reduce"]["text"].startswith("1 MiB among 2 instances")


def test_without_an_mpirun_the_check_and_the_jobs_fail(poprun: Poprun) -> None:
    code, checks = doctor(poprun, POPRUN_MPIRUN="/no/mpirun")

    assert code == 1
    assert checks["mpirun"]["status"] == "FAIL"
    assert checks["two instances"]["status"] == "FAIL"
    assert "/no/mpirun" in checks["two instances"]["text"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_dev_shm_is_seen(poprun: Poprun) -> None:
    mount = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'

    code, checks = doctor(poprun, "unshare", "-m", "sh", "-c", mount, "sh")

    assert code == 0
    assert checks["shared memory"]["status"] == "WARN"
    assert "remount" in checks["shared memory"]["mend"]


def test_other_hosts_are_checked_there_and_reduce_with_this_one(bed: Bed) -> None:
    output = bed.hosts[0].output("popctl", "doctor", "--host", "h0,h1", "--json")

    hosts = {host["host"]: host["checks"] for host in json.loads(output)["hosts"]}
    assert hosts.keys() == {"h0", "h1", "h0,h1"}
    [between] = hosts["h0,h1"]
    assert between["status"] == "PASS", between
    assert "among 2 instances" in between["text"]
    assert "mpirun" in {check["name"] for check in hosts["h1"]}


def test_a_host_that_ssh_does_not_reach_is_a_failure_with_ssh_s_words(
    bed: Bed,
) -> None:
    process = bed.hosts[0].start(
        *("popctl", "doctor", "--host", "h0,nowhere"), stdout=subprocess.PIPE
    )
    out, _ = process.communicate(timeout=200)

    assert process.returncode == 1
    failure = next(line for line in out.decode().splitlines() if "FAIL" in line)
    assert failure.startswith("FAIL  h0,nowhere: hosts: ")
    assert "nowhere" in failure.partition("hosts: ")[2]


KNOWN = "/etc/ssh/ssh_known_hosts"
BROKEN = {
    "host-key-unknown": (
        0,
        rf"cp {KNOWN} /etc/known; sed -Ei 's/(^|,)h1([, ])/\1forgotten\2/' {KNOWN}",
        f"mv /etc/known {KNOWN}",
        "its host key is not known here",
    ),
    "permission-denied": (
        1,
        "mv /root/.ssh/authorized_keys /root/.ssh/away",
        "mv /root/.ssh/away /root/.ssh/authorized_keys",
        "it does not accept your ssh key",
    ),
    "hanging": (
        1,
        # Until the connection is closed.
        "echo 'exec cat >/dev/null' >/root/.bashrc",
        "rm /root/.bashrc",
        "it does not answer within",
    ),
    "no-python": (
        1,
        f"mount -t tmpfs tmpfs {ROOT}",
        f"umount {ROOT}",
        f"it cannot run {BIN}/python, poprun's Python here",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_host_whose_ssh_is_broken_is_a_failure_with_the_reason(
    own_homes: Bed, kind: str
) -> None:
    place, mistake, correction, reason = BROKEN[kind]
    host = own_homes.hosts[place]
    host.output("sh", "-ec", mistake)
    try:
        ran = own_homes.front.run("popctl", "doctor", "--host", "h0,h1", "--json")
    finally:
        host.output("sh", "-ec", correction)
        own_homes.clean()

    hosts = {h["host"]: h["checks"] for h in json.loads(ran.stdout)["hosts"]}
    failed = [c for c in hosts["h0,h1"] if c["status"] == "FAIL"]
    assert ran.returncode == 1
    assert [check["name"] for check in failed] == ["hosts"]
    assert f"The host h1 cannot be used: {reason}" in failed[0]["text"]
