"""The guide's commands for several hosts run as printed on the guide's machines."""

import re
import shlex

import pytest
from beds.bed import Bed
from beds.guide import SERVER_FILES

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
    lines = re.findall(r"\[1,(.*?)\]<stdout>:(equal on .*)", ran.stdout)
    assert lines == [("0", "equal on all 2 instances with 8 replicas")]
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


def test_a_job_too_large_for_one_host_goes_to_those_of_its_cluster(
    guide_bed: Bed,
) -> None:
    server = guide_bed["vipu"]
    admin = ("vipu-admin", "--config", "admin.vipu-cli.hcl")
    made = "create cluster C16 --num-agents 4 --hosts 10.3.7.153,10.3.7.154"
    server.output(*admin, *made.split(), cwd=SERVER_FILES)
    command = "poprun --vipu-server-host=10.3.7.150 --vipu-cluster=C16"
    words = shlex.split(f"{command} --num-replicas=16 --num-instances=4")
    try:
        large = guide_bed["host153"].run(
            *words, "python3", "-c", ATTACHED, user="ipuser"
        )
        shown = guide_bed["host153"].output(
            *("vipu", "-H", "10.3.7.150", "get", "cluster", "C16"), user="ipuser"
        )
        small = guide_bed["host153"].run(
            *(*words[:-2], "--num-replicas=4", "--num-instances=4"),
            *("python3", "-c", ATTACHED),
            user="ipuser",
        )
    finally:
        server.output(*admin, "remove", "cluster", "C16", cwd=SERVER_FILES)

    assert (large.returncode, small.returncode) == (0, 0), (large, small)
    hosts = [line.split()[:2] for line in sorted(large.stdout.splitlines())]
    assert hosts == [["0", "host153"], ["1", "host153"]] + [
        [str(rank), "host154"] for rank in (2, 3)
    ]
    assert {line.split()[1] for line in small.stdout.splitlines()} == {"host153"}
    assert "10.3.7.153 10.3.7.154" in shown
