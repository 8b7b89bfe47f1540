"""Whether this machine lets a bed be made, and why not."""

import os
import shutil
import subprocess
from functools import cache

import pytest

# The program, and Debian's package with it.
PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "bridge": "iproute2",
    "tc": "iproute2",
    "ssh": "openssh-client",
    "/usr/sbin/sshd": "openssh-server",
}
SLURM_PROGRAMS = {
    "srun": "slurm-client",
    "/usr/sbin/slurmctld": "slurmctld",
    "/usr/sbin/slurmd": "slurmd",
    "/usr/sbin/munged": "munge",
}
# What a bed does to the machine: namespaces, mounts, a bridge with a cable.
TRIAL = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work etc /etc
ip link add name switch type bridge
ip link add name port0 type veth peer name eth0
"""


@cache
def reason_against_beds(slurm: bool = False) -> str:
    """Return why no bed can be made here, or an empty string."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    programs = {**PROGRAMS, **SLURM_PROGRAMS} if slurm else PROGRAMS
    missing = {pkg for name, pkg in programs.items() if not shutil.which(name)}
    if missing:
        return f"not installed: {', '.join(sorted(missing))}"
    namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--mount-proc"]
    trial = subprocess.run(
        ["unshare", *namespaces, "--fork", "--kill-child", "sh", "-e", "-c", TRIAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    if trial.returncode != 0:
        return f"root may not make hosts in namespaces: {trial.stderr.strip()}"
    return ""


def need_beds(slurm: bool = False) -> None:
    """Skip the test where no bed can be made; in CI it fails instead."""
    reason = reason_against_beds(slurm)
    if reason and (os.environ.get("CI") or os.environ.get("REQUIRE_BEDS")):
        pytest.fail(f"beds of hosts are required here: {reason}")
    if reason:
        pytest.skip(reason)
