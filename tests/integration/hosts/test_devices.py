"""Devices of instances on other hosts: agents ask poprun, which holds the lease."""

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from beds.bed import Bed
from conftest import wait_for

pytestmark = pytest.mark.mpi

PROGRAM = """
import os, socket, sys, time, popdist
device = popdist.getDeviceId() if sys.argv[2] == "asks" else "none"
server = os.environ.get("IPUOF_VIPU_API_HOST")
print(os.environ["RANK"], socket.gethostname(), device, server, flush=True)
open(f"/tmp/attached-{os.environ['RANK']}", "w").close()
time.sleep(float(sys.argv[1]))
"""


def poprun(*words: str, seconds: float = 0, use: str = "asks") -> list[str]:
    program = ("python3", "-c", PROGRAM, str(seconds), use)
    hosts = ("--mpirun", "local", "--host", "h0,h1", "-n", "4")
    return ["poprun", *hosts, "--vipu-partition=P", *words, *program]


def start_attached(bed: Bed, use: str = "asks") -> subprocess.Popen[str]:
    """Start a job, and wait until all of its instances are attached, if they ask."""
    process = bed.front.start(
        *poprun(seconds=600, use=use),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def is_attached() -> bool:
        assert process.poll() is None, process.communicate()
        return all(
            bed[f"h{rank // 2}"].path(f"/tmp/attached-{rank}").exists()
            for rank in range(4)
        )

    wait_for(is_attached, "four attached instances")
    return process


def attached(bed: Bed, *words: str) -> list[tuple[str, str]]:
    """Return the instances that processes are attached for, and their hosts."""
    shown = bed.front.output("vipu", *words, "get", "partition", "P")
    rows = re.findall(r"^ (\d+) .*\| (\S+) +\| \d+ *$", shown, re.MULTILINE)
    return [(instance, host) for instance, host in rows]


@pytest.fixture(autouse=True)
def own_files(bed: Bed) -> None:
    for host in bed.hosts:
        host.run("sh", "-c", "rm -rf /tmp/attached-* ~/.local/state/poprun")


def remove_files(bed: Bed) -> None:
    for host in bed.hosts:
        host.run("sh", "-c", "rm -f /tmp/attached-*")


def test_instances_of_every_host_attach_to_the_devices_of_the_embedded_inventory(
    bed: Bed,
) -> None:
    ran = bed.front.run(*poprun())

    remove_files(bed)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == [
        *("0 h0 0 None", "1 h0 1 None", "2 h1 2 None", "3 h1 3 None")
    ]


def test_get_partition_shows_which_process_of_which_host_is_attached(bed: Bed) -> None:
    job = start_attached(bed)
    remove_files(bed)

    assert attached(bed) == [("0", "h0"), ("1", "h0"), ("2", "h1"), ("3", "h1")]
    job.terminate()
    job.communicate()
    assert bed.front.run("vipu", "get", "partition", "P").returncode == 1


def test_an_attached_process_that_is_killed_leaves_the_device_to_its_instance(
    bed: Bed,
) -> None:
    twice = f"import subprocess, sys\ncode = {PROGRAM!r}\n" + (
        "for _ in range(2):\n"
        "    subprocess.run([sys.executable, '-c', code, '0', 'asks'], check=True)\n"
    )
    ran = bed.front.run(
        *("poprun", "--mpirun", "local", "--host", "h1", "-n", "1"),
        *("--vipu-partition=P", "python3", "-c", twice),
    )

    remove_files(bed)
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "0 h1 0 None\n" * 2)


@pytest.mark.parametrize("use", ["asks", "never asks"])
def test_ipus_stay_held_while_instances_of_another_host_may_outlive_poprun(
    bed: Bed, use: str
) -> None:
    job = start_attached(bed, use)
    ours = bed.front.output("pgrep", "-f", "entry.py guard|bin/poprun ").split()

    with stopped_agents(bed):
        bed.front.run("kill", "-KILL", *ours)
        job.communicate()
        # The last shim on this host does what the guard has not done.
        left = ("pgrep", "-f", "helpers/entry.py|release.py")
        wait_for(lambda: not bed.front.run(*left).stdout, "the end of the job here")
        # No process on this host can tell that they have ended.
        assert attached(bed)[2:] == (
            [("2", "h1"), ("3", "h1")] if use == "asks" else []
        )
        refused = bed.front.run(*poprun("--reset-partition=no"))

    assert "is in use" in refused.stderr


def test_ipus_stay_held_while_instances_of_a_lost_host_may_run(bed: Bed) -> None:
    job = start_attached(bed, "never asks")

    with stopped_agents(bed):
        bed.front.output("pkill", "-KILL", "-f", "^/usr/bin/ssh .*h1|^ssh .*h1")
        _, stderr = job.communicate(timeout=200)
        assert "The host h1 was lost" in stderr
        refused = bed.front.run(*poprun("--reset-partition=no"))
        wait_for(
            lambda: "is in use" not in bed.front.run(*poprun()).stderr,
            "the end of the lease",
        )

    assert "is in use" in refused.stderr


@contextmanager
def stopped_agents(bed: Bed) -> Iterator[None]:
    """Stop the agent of h1, and at the end let it end the job that has lost poprun."""
    remove_files(bed)
    agents = bed["h1"].output("pgrep", "-f", "host/agent_entry.py").split()
    bed["h1"].run("kill", "-STOP", *agents)
    try:
        yield
    finally:
        bed["h1"].run("kill", "-CONT", *agents)
        bed.front.run("vipu", "remove", "partition", "P", "--force")
        remove_files(bed)
    wait_for(lambda: not bed.leftovers(), "the agent to end the job")


def start_secure_server(bed: Bed) -> None:
    """Start a server on the front host that only root there has a key for."""
    files = bed.front.path("/var/log/v")
    files.mkdir()
    server = "vipu-server --secure --pod pod16 --database vipu.db >log 2>&1 &"
    bed.front.output("sh", "-c", server, cwd="/var/log/v")
    wait_for(lambda: "listens" in (files / "log").read_text(), "vipu-server")
    admin = ("vipu-admin", "--config", "admin.vipu-cli.hcl")
    bed.front.output(*admin, "create", "user", "root", cwd="/var/log/v")
    configure = "mkdir ~/.vipu && cp root.vipu-cli.hcl ~/.vipu/vipu-cli.hcl"
    bed.front.output("sh", "-c", configure, cwd="/var/log/v")


def test_instances_on_other_hosts_need_no_key_of_a_server_on_this_one(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=2)
    start_secure_server(bed)

    ran = bed.front.run(*poprun())

    assert (ran.returncode, ran.stderr) == (0, "")
    servers = {line.split()[1]: line.split()[3] for line in ran.stdout.splitlines()}
    assert len(ran.stdout.splitlines()) == 4
    assert servers == {"h0": "127.0.0.1", "h1": "None"}
