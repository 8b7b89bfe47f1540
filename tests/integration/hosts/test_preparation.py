"""What is done on hosts before a job: keys are installed, Pythons are copied."""

import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from beds.bed import Bed
from beds.host import Host
from conftest import BIN, ROOT

pytestmark = pytest.mark.mpi

Make = Callable[..., Bed]
JOB = ("poprun", "--mpirun", "local", "--offline-mode=yes")
DISTRIBUTE = (*JOB, "--distribute-ssh-key=yes")
SYNCHRONISE = "--synchronise-python-venv=yes"
NO_KEYS = "rm /root/.ssh/authorized_keys"
# Does what a virtual environment with poprun in it does, and takes a tenth of the time.
VENV = "/root/job/venv"
MAKE_VENV = f"""
mkdir /root/job
{BIN}/python -m venv --without-pip {VENV}
cd {VENV}/lib/python3*/site-packages
cp -r {ROOT}/poprun {ROOT}/popdist {Path(yaml.__file__).parent} .
"""
SHOW = "import poprun; print(poprun.__file__)"


def shell(host: Host, script: str) -> str:
    return host.output("sh", "-ec", script)


def run_on_terminal(
    host: Host, argv: tuple[str, ...], *answers: tuple[str, str]
) -> str:
    """Run a command on a terminal, answer its questions, and return what it shows."""
    process = host.start(
        *("script", "-qec", " ".join(argv), "/dev/null"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    shown, seen = "", 0
    for question, answer in answers:
        while (at := shown.find(question, seen)) < 0:
            readable, _, _ = select.select([process.stdout], [], [], 200)
            data = os.read(process.stdout.fileno(), 4096) if readable else b""
            assert data, shown
            shown += data.decode()
        seen = at + len(question)
        process.stdin.write(f"{answer}\n".encode())
        process.stdin.flush()
    shown += process.stdout.read().decode()
    return f"{shown}{process.wait()}".replace("\r", "")


def test_a_key_is_installed_where_it_is_not_accepted(make_bed: Make) -> None:
    bed = make_bed(hosts=3)
    shell(bed["h1"], NO_KEYS)
    shell(bed["h2"], "printf 'ssh-ed25519 AAAA other' >/root/.ssh/authorized_keys")
    key = shell(bed.front, "cat /root/.ssh/id_ed25519.pub")
    words = ("--tag-format", "none", "--host", "h0,h1,h2", "-n", "3", "hostname")
    job = (*DISTRIBUTE, *words)

    shown = run_on_terminal(
        bed.front, job, ("h1's password:", "poprun"), ("h2's password:", "poprun")
    )

    *_, a, b, c, code = shown.split()
    assert (sorted([a, b, c]), code) == (["h0", "h1", "h2"], "0")
    assert shell(bed["h1"], "cat /root/.ssh/authorized_keys") == key
    assert shell(bed["h1"], "stat -c %a /root/.ssh/authorized_keys") == "600\n"
    assert shell(bed["h2"], "cat /root/.ssh/authorized_keys") == (
        f"ssh-ed25519 AAAA other\n{key}"
    )
    # It asks no more.
    assert bed.front.run(*job).returncode == 0


def test_a_host_key_is_accepted_only_as_ssh_asks(make_bed: Make) -> None:
    bed = make_bed(hosts=2)
    shell(bed["h1"], NO_KEYS)
    forget = r"s/(^|,)h1([, ])/\1forgotten\2/"
    shell(bed.front, f"sed -Ei '{forget}' /etc/ssh/ssh_known_hosts")
    job = (*DISTRIBUTE, "--host", "h0,h1", "-n", "2", "hostname")

    refused = run_on_terminal(bed.front, job, ("(yes/no", "no"))
    accepted = run_on_terminal(
        bed.front, job, ("(yes/no", "yes"), ("password:", "poprun")
    )

    assert refused.endswith(
        "Host key verification failed.\npoprun: error: Your ssh key could "
        "not be installed on the host h1; the reason is in ssh's message "
        "above. Try: ssh h1 true\n125"
    )
    assert accepted.endswith("0")


def test_one_password_is_enough_where_home_is_shared(make_bed: Make) -> None:
    bed = make_bed(hosts=3, shared_home=True)
    shell(bed.front, NO_KEYS)
    job = (*DISTRIBUTE, "--host", "h0,h1,h2", "-n", "3", "hostname")

    shown = run_on_terminal(bed.front, job, ("h1's password:", "poprun"))

    assert shown.endswith("0")
    assert "h2's password" not in shown


@pytest.mark.parametrize(
    ("mistake", "correction", "code", "sentences"),
    [
        pytest.param(
            "true",
            "true",
            2,
            "--distribute-ssh-key must ask for passwords to install your ssh "
            "key on h1, but there is no terminal to ask on. Start poprun on a "
            "terminal once, or add your key there in another way.",
            id="no-terminal",
        ),
        pytest.param(
            "mv /root/.ssh/id_ed25519.pub /root/away",
            "mv /root/away /root/.ssh/id_ed25519.pub",
            2,
            "--distribute-ssh-key found no public ssh key of yours, neither in "
            "a file that ssh would use nor in an ssh-agent. Create one with: "
            "ssh-keygen -t ed25519",
            id="no-key",
        ),
        pytest.param(
            "echo 'Host h2\n Port 99' >/root/.ssh/config",
            "rm /root/.ssh/config",
            125,
            "The host h2 cannot be used: no sshd listens there. ssh says: "
            "'ssh: connect to host h2 port 99: Connection refused'. Start it "
            "there with 'systemctl start ssh', or set its Port in "
            "~/.ssh/config.",
            id="what-no-key-mends",
        ),
    ],
)
def test_a_key_that_cannot_be_installed_is_explained(
    own_homes: Bed, mistake: str, correction: str, code: int, sentences: str
) -> None:
    shell(own_homes["h1"], "mv /root/.ssh/authorized_keys /root/away")
    shell(own_homes.front, mistake)
    try:
        ran = own_homes.front.run(
            *DISTRIBUTE, "--host", "h0,h1,h2", "-n", "3", "hostname"
        )
    finally:
        shell(own_homes.front, correction)
        shell(own_homes["h1"], "mv /root/away /root/.ssh/authorized_keys")

    assert (ran.returncode, ran.stderr) == (code, f"poprun: error: {sentences}\n")


class Venv:
    """A bed whose first host has a virtual environment with poprun in it."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        shell(bed.front, MAKE_VENV)
        packages = Path(
            bed.front.output("sh", "-c", f"echo {VENV}/lib/python3*").strip()
        )
        self.file = str(packages / "site-packages/poprun/__init__.py")

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.bed.front.run(
            *(f"{VENV}/bin/python", "-m", *JOB, *words),
            *("--host", "h0,h1,h2", "-n", "3", "python", "-c", SHOW),
            env={"PATH": f"{VENV}/bin:/usr/bin:/bin"},
        )

    def synchronise(self) -> "subprocess.CompletedProcess[str]":
        return self.run(SYNCHRONISE, "-v")


def test_a_virtual_environment_is_copied_to_the_same_path(make_bed: Make) -> None:
    bed = make_bed(hosts=3)
    venv = Venv(bed)

    first = venv.synchronise()
    shell(bed["h1"], f"touch {VENV}/removed; rm {venv.file}")
    second = venv.synchronise()
    without = venv.run()

    for ran in (first, second, without):
        assert (ran.returncode, ran.stdout) == (0, f"{venv.file}\n" * 3), ran
    assert f"Copying the virtual environment {VENV} to h1, h2\n" in first.stderr
    listing = f"cd {VENV}; find . -not -path '*/__pycache__*' | sort"
    assert shell(bed["h1"], listing) == shell(bed.front, listing)


def test_a_virtual_environment_that_hosts_share_is_not_copied(make_bed: Make) -> None:
    venv = Venv(make_bed(hosts=3, shared_home=True))

    ran = venv.synchronise()

    assert (ran.returncode, ran.stdout) == (0, f"{venv.file}\n" * 3)
    assert "Copying" not in ran.stderr


def test_srun_copies_a_virtual_environment_to_nodes_without_sshd(
    make_bed: Make,
) -> None:
    bed = make_bed(hosts=2, slurm_cpus=2)
    bed["h1"].stop_sshd()
    venv = Venv(bed)
    words = ("salloc", "--quiet", "--nodes=2", f"{VENV}/bin/python", "-m", *JOB)
    job = ("-v", "-n", "2", "python", "-c", SHOW)
    environ = {"PATH": f"{VENV}/bin:/usr/bin:/bin"}

    copied = bed.front.run(*words, SYNCHRONISE, *job, env=environ)
    shell(bed["h1"], f"mount --bind /dev/null /usr/bin/rsync; rm {venv.file}")
    refused = bed.front.run(*words, SYNCHRONISE, *job, env=environ)

    assert (copied.returncode, copied.stdout) == (0, f"{venv.file}\n" * 2), copied
    assert f"Copying the virtual environment {VENV} to h1\n" in copied.stderr
    assert refused.returncode == 125
    assert refused.stderr == (
        "poprun: error: The host h1 has no rsync, which "
        "--synchronise-python-venv needs. Install it there with: apt "
        "install rsync\n"
    )
    bed.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("mistake", "sentences"),
    [
        pytest.param(
            "mount --bind /dev/null /usr/bin/rsync",
            "The host h2 has no rsync, which --synchronise-python-venv needs. "
            "Install it there with: apt install rsync\n",
            id="no-rsync",
        ),
        pytest.param(
            "mkdir /root/job; mount -t tmpfs -o size=100k t /root/job",
            "No space left on device",
            id="no-room",
        ),
        pytest.param(
            "touch /root/job",
            f"The virtual environment {VENV} cannot be copied to the host h2. It says: "
            "'mkdir: cannot create directory '/root/job': Not a directory'. See: ssh "
            "h2 true\n",
            id="no-directory",
        ),
        pytest.param(
            "rm /root/.ssh/authorized_keys",
            "The host h2 cannot be used: it does not accept your ssh key.",
            id="denied",
        ),
    ],
)
def test_a_host_that_takes_no_copy_is_named(
    make_bed: Make, mistake: str, sentences: str
) -> None:
    bed = make_bed(hosts=3)
    venv = Venv(bed)
    shell(bed["h2"], mistake)

    ran = venv.synchronise()

    assert ran.returncode == 125
    assert sentences in ran.stderr
    assert "h1" not in ran.stderr.partition("error:")[2]
    assert shell(bed.front, f"ls -a {VENV}").split() == [
        *(".", "..", "bin", "include", "lib", "lib64", "pyvenv.cfg")
    ]


def test_there_is_no_poplar_sdk_to_copy(own_homes: Bed) -> None:
    ran = own_homes.front.run(
        *(*JOB, "--synchronise-poplar-sdk=yes", "--host", "h0,h1", "-n", "2", "true")
    )

    assert (ran.returncode, ran.stderr) == (
        0,
        "poprun: warning: --synchronise-poplar-sdk copies nothing: there is no Poplar "
        "SDK here, because programs use the stand-in that comes with popdist.\n",
    )
