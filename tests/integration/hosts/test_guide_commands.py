"""The guide's commands for several hosts run as printed on the guide's machines."""

import shlex

import pytest
from beds.bed import Bed

pytestmark = pytest.mark.mpi

# Two hosts of one IPU-Link domain.
ONE_ILD = (
    "poprun --host 10.3.7.153,10.3.7.154 --numa-aware=yes "
    "--vipu-server-host=10.3.7.150 --vipu-partition=P8 --vipu-cluster=A8 "
    '--num-ilds=1 --mpi-global-args="--tag-output" '
    '--mpi-local-args="-x PYTHONPATH" '
    "--num-replicas=8 --num-instances=2 python3 train.py"
)
# Two hosts of two: 10.3.8.153 belongs to the second one.
TWO_ILDS = (
    "poprun --host 10.3.7.153,10.3.8.153 --numa-aware=yes "
    "--vipu-server-host=10.3.7.150 --vipu-partition=P8 --vipu-cluster=P8 "
    '--num-ilds=2 --mpi-global-args="--tag-output" '
    '--mpi-local-args="-x PYTHONPATH" '
    "--num-replicas=8 --num-instances=2 python3 train.py"
)
ATTACHED = (
    "import os, popdist, socket; print(os.environ['RANK'], socket.gethostname(), "
    "popdist.getDeviceId(), os.environ['IPUOF_VIPU_API_HOST'])"
)


@pytest.mark.parametrize(
    "command",
    [pytest.param(ONE_ILD, id="one-ILD"), pytest.param(TWO_ILDS, id="two-ILDs")],
)
@pytest.mark.parametrize(("name", "user"), [("host153", "ipuser"), ("vipu", "root")])
def test_a_command_for_several_hosts_runs_as_printed(
    guide_bed: Bed, name: str, user: str, command: str
) -> None:
    ran = guide_bed[name].run(*shlex.split(command), user=user)

    assert ran.returncode == 0, ran
    assert "[1,0]<stdout>:equal on all 2 instances with 8 replicas" in ran.stdout
    # The partition was made for the job, and goes with it.
    listed = ("vipu", "--api-host", "10.3.7.150", "list", "partitions")
    assert " P8 " not in guide_bed[name].output(*listed, user=user)


@pytest.mark.parametrize(
    ("command", "hosts"),
    [
        pytest.param(ONE_ILD, ("host153", "host154"), id="one-ILD"),
        pytest.param(TWO_ILDS, ("host153", "pod2-host153"), id="two-ILDs"),
    ],
)
def test_each_host_has_its_half_of_the_partition(
    guide_bed: Bed, command: str, hosts: tuple[str, str]
) -> None:
    *words, _, _ = shlex.split(command)
    words += ["--print-topology=yes", "python3", "-c", ATTACHED]

    ran = guide_bed["host153"].run(*words, user="ipuser")

    assert ran.returncode == 0, ran
    # Of 8 IPUs, devices 12 and 13 are the halves.
    lines = [line for line in ran.stdout.splitlines() if "<stdout>:" in line]
    assert sorted(lines) == [
        f"[1,0]<stdout>:0 {hosts[0]} 12 10.3.7.150",
        f"[1,1]<stdout>:1 {hosts[1]} 13 10.3.7.150",
    ]
