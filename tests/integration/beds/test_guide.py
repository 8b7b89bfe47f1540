"""The guide's machines: its commands for one host run on them as printed."""

import shlex

import pytest
from beds.bed import Bed

SINGLE_INSTANCE = (
    "poprun --numa-aware=yes --vipu-server-host=10.3.7.150 --vipu-partition=P8 "
    '--vipu-cluster=A8 --mpi-global-args="--tag-output" '
    "--num-replicas=4 --num-instances=1 python3 train.py"
)
SINGLE_HOST = (
    "poprun --numa-aware=yes --vipu-server-host=10.3.7.150 --vipu-partition=A8 "
    '--vipu-cluster=A8 --mpi-global-args="--tag-output" '
    "--num-replicas=8 --num-instances=2 python3 train.py"
)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("command", "sizes"),
    [
        pytest.param(SINGLE_INSTANCE, "1 instances with 4 replicas", id="instance"),
        pytest.param(SINGLE_HOST, "2 instances with 8 replicas", id="host"),
    ],
)
@pytest.mark.parametrize(("name", "user"), [("host153", "root"), ("host154", "ipuser")])
def test_a_command_for_one_host_runs_as_printed(
    guide_bed: Bed, name: str, user: str, command: str, sizes: str
) -> None:
    ran = guide_bed[name].run(*shlex.split(command), user=user)

    assert ran.returncode == 0, ran
    assert f"equal on all {sizes}" in ran.stdout


def test_every_host_sees_the_servers_clusters(guide_bed: Bed) -> None:
    for host in guide_bed.hosts[1:]:
        listed = host.output("vipu", "--api-host", "10.3.7.150", "list", "clusters")
        assert "A8" in listed
        assert "P8" in listed
