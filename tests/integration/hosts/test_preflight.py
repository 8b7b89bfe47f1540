"""Hosts that cannot be used: each real mistake has its sentence, and leaves nothing."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from beds.bed import Bed
from beds.host import Host
from conftest import BIN, ROOT, mpirun_of, wait_for

pytestmark = pytest.mark.mpi

PYTHON = f"{BIN}/python"
ENTRY = f"{ROOT}/poprun/host/agent_entry.py"
NO_ADDRESS = "10.31.9.9"
Make = Callable[..., Bed]
JOB = ("poprun", "--mpirun", "local", "--offline-mode=yes")


@pytest.fixture
def hosts(own_homes: Bed) -> Iterator[Bed]:
    """Three hosts with a HOME each, and the proof that the test left nothing there."""
    yield own_homes
    try:
        own_homes.assert_nothing_is_left()
    finally:
        own_homes.clean()


def shell(host: Host, script: str) -> str:
    return host.output("sh", "-ec", script)


def refusal(bed: Bed, hosts: str, *words: str, **options: str) -> str:
    """Return what poprun says of a job on hosts that cannot be used."""
    count = len(hosts.split(","))
    job = [*JOB, *words, "--host", hosts, "-n", str(count)]
    ran = bed.front.run(*job, "hostname", **options)  # type: ignore[arg-type]
    assert (ran.returncode, ran.stdout) == (125, ""), ran
    return ran.stderr.removeprefix("poprun: error: ")


KNOWN = "/etc/ssh/ssh_known_hosts"
FORGET_H1 = rf"sed -Ei 's/(^|,)h1([, ])/\1forgotten\2/' {KNOWN}"
OTHER_KEY = (
    "ssh-keygen -q -t ed25519 -N '' -f /etc/other && "
    f'echo "h1 $(cut -d" " -f1,2 /etc/other.pub)" >>{KNOWN}'
)


@pytest.mark.parametrize(
    ("place", "mistake", "correction", "sentences"),
    [
        pytest.param(
            "h0",
            f"cp {KNOWN} /etc/known; {FORGET_H1}",
            f"mv /etc/known {KNOWN}",
            "its host key is not known here. ssh says: 'Host key verification failed'. "
            "Run 'ssh h1 true' once and accept the key.",
            id="host-key-unknown",
        ),
        pytest.param(
            "h0",
            f"cp {KNOWN} /etc/known; {FORGET_H1}; {OTHER_KEY}",
            f"mv /etc/known {KNOWN}; rm /etc/other*",
            "its host key differs from the one that is known here. ssh says: "
            "'Host key for h1 has changed and you have requested strict "
            "checking; Host key verification failed'. If it was reinstalled, "
            f"run 'ssh-keygen -f \"{KNOWN}\" -R \"h1\"', then 'ssh h1 true' to "
            "accept its new key.",
            id="host-key-changed",
        ),
        pytest.param(
            "h1",
            "mv /root/.ssh/authorized_keys /root/.ssh/away",
            "mv /root/.ssh/away /root/.ssh/authorized_keys",
            "it does not accept your ssh key. ssh says: 'root@h1: Permission denied "
            "(publickey,password,keyboard-interactive)'. Run 'ssh-copy-id h1', or "
            "start the job with --distribute-ssh-key=yes; a key with a passphrase must "
            "be loaded with ssh-add.",
            id="permission-denied",
        ),
        pytest.param(
            "h1",
            "echo 'echo no conda here >&2; exit 3' >/root/.bashrc",
            "rm /root/.bashrc",
            "its login shell, or poprun's agent, ended with exit code 3. It says: 'no "
            "conda here'. See: ssh h1 true",
            id="login-shell-fails",
        ),
        pytest.param(
            "h1",
            # Until poprun has closed the connection.
            "echo 'exec cat >/dev/null' >/root/.bashrc",
            "rm /root/.bashrc",
            "it does not answer within 6 s. See: ssh h1 true",
            id="login-shell-hangs",
        ),
        pytest.param(
            "h1",
            "mount -o remount,size=4k /tmp; head -c 4096 /dev/zero >/tmp/full",
            "rm /tmp/full; mount -o remount,size=50% /tmp",
            "no file can be created in /tmp: free some space there, or set "
            "TMPDIR; see: ssh h1 df -h /tmp",
            id="no-room",
        ),
        pytest.param(
            "h1",
            f"mount -t tmpfs tmpfs {ROOT}",
            f"umount {ROOT}",
            f"it cannot run {PYTHON}, poprun's Python here, a link to "
            f"{Path(PYTHON).resolve()}. It says: 'bash: line 1: {PYTHON}: No such file "
            "or directory'. Install the same Python at the same path there; "
            "--synchronise-python-venv=yes copies a virtual environment.",
            id="no-python",
        ),
        pytest.param(
            "h1",
            f"mount -t tmpfs tmpfs {ROOT}/poprun",
            f"umount {ROOT}/poprun",
            f"it has no poprun in {ROOT}/poprun. It says: '{PYTHON}: can't open file "
            f"'{ENTRY}': [Errno 2] No such file or directory'. Install poprun at the "
            "same path there; --synchronise-python-venv=yes copies a virtual "
            "environment.",
            id="no-poprun",
        ),
        pytest.param(
            "h1",
            f"printf '#!/bin/sh\\necho old >&2; exit 1\\n' >/etc/old; chmod 755 "
            f"/etc/old; mount --bind /etc/old {Path(PYTHON).resolve()}",
            f"umount {Path(PYTHON).resolve()}",
            "its login shell, or poprun's agent, ended with exit code 1. It says: "
            "'old'. See: ssh h1 true",
            id="agent-fails",
        ),
    ],
)
def test_a_host_that_cannot_be_used_is_named_with_the_reason_and_what_mends_it(
    hosts: Bed, place: str, mistake: str, correction: str, sentences: str
) -> None:
    shell(hosts[place], mistake)
    try:
        text = refusal(hosts, "h0,h1,h2")
    finally:
        shell(hosts[place], correction)

    # A busy machine is given longer.
    text = re.sub(r"within \d+ s", "within 6 s", text)
    assert text == f"The host h1 cannot be used: {sentences}\n"


def test_several_hosts_that_cannot_be_reached_are_all_named(make_bed: Make) -> None:
    bed = make_bed(hosts=3)
    bed["h1"].stop_sshd()

    text = refusal(bed, f"h0,h1,nosuch,h2,{NO_ADDRESS},192.168.4.4")

    assert text.splitlines() == [
        "The host h1 cannot be used: no sshd listens there. ssh says: "
        "'ssh: connect to host h1 port 22: Connection refused'. Start it "
        "there with 'systemctl start ssh', or set its Port in "
        "~/.ssh/config.",
        "The host nosuch cannot be used: its name cannot be resolved. ssh "
        "says: 'ssh: Could not resolve hostname nosuch: Name or service "
        "not known'. Correct the name, or add it to ~/.ssh/config or "
        "/etc/hosts; see: getent hosts nosuch",
        f"The host {NO_ADDRESS} cannot be used: it cannot be reached. ssh "
        f"says: 'ssh: connect to host {NO_ADDRESS} port 22: No route to "
        f"host'. Check whether it is up with: ping -c 1 {NO_ADDRESS}",
        "The host 192.168.4.4 cannot be used: it cannot be reached. ssh "
        "says: 'ssh: connect to host 192.168.4.4 port 22: Network is "
        "unreachable'. Check whether it is up with: ping -c 1 192.168.4.4",
    ]
    bed.front.clean()


SILENT = (
    "import socket, sys, time; s = socket.socket(); "
    "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
    "s.bind(('', 22)); s.listen(); print(flush=True); time.sleep(600)"
)


def accept_and_say_nothing(host: Host) -> None:
    host.stop_sshd()
    server = host.start("python3", "-c", SILENT, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.read(1)


def stop_its_sshd(host: Host) -> None:
    host.output("pkill", "-STOP", "sshd")


def cut_its_link(host: Host) -> None:
    host.link.cut()


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (accept_and_say_nothing, "it does not answer. ssh says: 'Connection timed out"),
        (stop_its_sshd, "it does not answer. ssh says: 'Connection timed out"),
        # What it says depends on how long the kernel waits for an Ethernet address.
        (cut_its_link, ""),
    ],
)
def test_a_host_that_says_nothing_is_named(
    make_bed: Make, lose: Callable[[Host], None], words: str
) -> None:
    bed = make_bed(hosts=2)
    lose(bed["h1"])

    text = refusal(bed, "h0,h1")

    assert text.startswith(f"The host h1 cannot be used: {words}")
    assert text.endswith("Check whether it is up with: ping -c 1 h1\n")


def test_a_directory_that_hosts_lack_is_named_for_each(hosts: Bed) -> None:
    hosts.front.output("mkdir", "-p", "/root/work")

    text = refusal(hosts, "h0,h1,h2", cwd="/root/work")

    assert text.splitlines() == [
        f"On the host {name}: instances cannot start in '/root/work', poprun's current "
        "directory: No such file or directory. Create it there with mkdir -p, let "
        "--sync . copy it, or start poprun in a directory that the hosts share."
        for name in ("h1", "h2")
    ]


def test_a_directory_of_the_option_that_hosts_lack_is_named_for_each(
    hosts: Bed,
) -> None:
    hosts.front.output("mkdir", "-p", "/root/only here")

    words = ("--host", "h0,h1,h2", "-n", "3", "--cwd", "/root/only here", "true")
    ran = hosts.front.run(*JOB, *words)

    assert ran.returncode == 2
    assert ran.stderr.removeprefix("poprun: error: ").splitlines() == [
        f"On the host {name}: No instance can run in '/root/only here': No "
        "such file or directory. Create it with mkdir -p, or name another "
        "directory with --cwd."
        for name in ("h1", "h2")
    ]


def test_a_program_that_hosts_lack_is_named_for_each(hosts: Bed) -> None:
    shell(hosts.front, "echo '#!/bin/sh' >/root/program; chmod +x /root/program")

    ran = hosts.front.run(*JOB, "--host", "h0,h1,h2", "-n", "3", "/root/program")

    assert ran.returncode == 127
    assert ran.stderr.removeprefix("poprun: error: ").splitlines() == [
        f"On the host {name}: There is no program '/root/program'. Copy it "
        "there, put it in a directory that the hosts share, or let --sync "
        "DIR copy its folder."
        for name in ("h1", "h2")
    ]


def test_each_of_several_programs_is_looked_for_where_it_runs(hosts: Bed) -> None:
    shell(hosts.front, "printf '#!/bin/sh\n' >/root/only; chmod +x /root/only")
    job = (*JOB, "--host", "h0,h1")

    works = hosts.front.run(*job, "-n1", "/root/only", ":", "-n1", "true")
    refused = hosts.front.run(*job, "-n1", "true", ":", "-n1", "/root/only")

    assert (works.returncode, works.stderr) == (0, "")
    assert (refused.returncode, refused.stderr) == (
        127,
        "poprun: error: On the host h1: There is no program '/root/only'. "
        "Copy it there, put it in a directory that the hosts share, or let "
        "--sync DIR copy its folder.\n",
    )


def test_a_program_that_there_is_nowhere_is_named_once(hosts: Bed) -> None:
    ran = hosts.front.run(*JOB, "--host", "h0,h1,h2", "-n", "3", "./missing")

    assert (ran.returncode, ran.stderr) == (
        127,
        "poprun: error: There is no program './missing'.\n",
    )


def test_a_host_without_the_mpi_is_named(hosts: Bed) -> None:
    mpirun = mpirun_of("hydra")
    directory = Path(mpirun).parent
    shell(hosts["h1"], f"mount -t tmpfs tmpfs {directory}")
    shell(
        hosts["h2"],
        f"mount -t tmpfs tmpfs {directory}; ln -s {mpirun_of('openmpi5')} {mpirun}",
    )
    try:
        text = refusal(hosts, "h0,h1,h2", "--mpirun", mpirun)
    finally:
        shell(hosts["h1"], f"umount {directory}")
        shell(hosts["h2"], f"umount {directory}")

    none, other = text.splitlines()
    assert none.startswith(f"On the host h1: There is no {mpirun} to use as mpirun.")
    assert other.startswith(f"On the host h2: {mpirun} belongs to Open MPI 5")
    assert other.endswith("Install the same MPI at the same path there.")


def test_a_login_shell_may_print_and_a_home_may_be_missing(hosts: Bed) -> None:
    place = hosts["h1"]
    shell(hosts["h2"], "echo 'echo Welcome; echo to h2 >&2' >/home/ipuser/.bashrc")
    shell(place, "cp /home/ipuser/.ssh/authorized_keys /etc/keys_ipuser")
    shell(place, "mv /home/ipuser /home/gone")
    try:
        ran = hosts.front.run(
            *(*JOB, "--host", "h1,h2", "-n", "2", "hostname"), user="ipuser", cwd="/tmp"
        )
    finally:
        shell(place, "mv /home/gone /home/ipuser; rm /etc/keys_ipuser")
        shell(hosts["h2"], "rm /home/ipuser/.bashrc")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split()) == ["h1", "h2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_preflight_that_is_interrupted_leaves_nothing(
    hosts: Bed, number: signal.Signals
) -> None:
    # It is a child of ssh, as the ssh is that connects to a jump host.
    ssh = "ssh -o ProxyCommand='sleep 1000'"
    code = 125
    # On a busy machine poprun may have given up before the signal comes.
    while code == 125:
        poprun = hosts.front.start(
            *(*JOB, "--ssh", ssh, "--host", "h1,h2", "-n", "2", "hostname"),
            stderr=subprocess.DEVNULL,
        )
        wait_for(
            lambda: (
                "sleep 1000" in str(hosts.front.processes())
                or poprun.poll() is not None  # noqa: B023
            ),
            "ssh's connection",
        )
        poprun.send_signal(number)
        code = poprun.wait(200)

    assert code in (-number, 128 + number)
    hosts.assert_nothing_is_left()


def configure(bed: Bed, text: str) -> None:
    bed.front.path("/root/.ssh/config").write_text(text)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param("Host b\n HostName h1\n ProxyJump h2\n", id="jump"),
        pytest.param(
            "Host b\n HostName h1\n Port 2222\n IdentityFile /etc/key\n "
            "IdentitiesOnly yes\n",
            id="port-and-identity",
        ),
        pytest.param(
            "Host b\n HostName h1\n ControlMaster auto\n ControlPath /etc/%C\n "
            "ControlPersist no\n",
            id="master",
        ),
    ],
)
def test_the_configuration_of_ssh_counts(hosts: Bed, config: str) -> None:
    shell(hosts.front, "cp /root/.ssh/id_ed25519 /etc/key")
    configure(hosts, config)
    try:
        ran = hosts.front.run(*JOB, "--host", "h0,b", "-n", "2", "hostname")
    finally:
        shell(hosts.front, "rm /root/.ssh/config /etc/key")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split()) == ["h0", "h1"]


def test_a_connection_that_is_open_already_is_used_and_stays(hosts: Bed) -> None:
    configure(
        hosts, "Host *\n ControlMaster auto\n ControlPath /etc/%C\n ControlPersist 60\n"
    )
    hosts.front.output("ssh", "h1", "true")
    hosts["h1"].stop_sshd()
    try:
        ran = hosts.front.run(*JOB, "--host", "h0,h1", "-n", "2", "hostname")
        hosts.front.output("ssh", "-O", "exit", "h1")
    finally:
        hosts["h1"].start_sshd()
        hosts["h1"].note_own()
        shell(hosts.front, "rm /root/.ssh/config")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split()) == ["h0", "h1"]


def test_the_agent_runs_as_the_user_that_is_named(hosts: Bed) -> None:
    ran = hosts.front.run(
        *(*JOB, "--host", "h0,ipuser@h1", "-n", "2", "id", "-un"), cwd="/tmp"
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split()) == ["ipuser", "root"]


def test_this_machine_has_no_instances_of_another_user(hosts: Bed) -> None:
    ran = hosts.front.run(
        *(*JOB, "--host", "ipuser@h0,h1", "-n", "2", "id", "-un"), cwd="/tmp"
    )
    own = hosts.front.run(*JOB, "--host", "root@h0,h1", "-n", "2", "hostname")

    assert (ran.returncode, ran.stderr) == (
        2,
        "poprun: error: ipuser@h0 is this machine, where the job runs as you. Leave "
        "the user out, or start poprun as that user.\n",
    )
    assert sorted(own.stdout.split()) == ["h0", "h1"]


def test_a_machine_is_one_host_under_all_its_names(hosts: Bed) -> None:
    ran = hosts.front.run(*JOB, "--host", "h0,h1,h1.bed", "-n", "3", "hostname")

    assert (ran.returncode, ran.stderr) == (
        2,
        "poprun: error: h1 and h1.bed are the same machine. Name it once; "
        "-n says how many instances to start.\n",
    )


# poprun, which waits for hosts for longer.
PATIENT = (
    "from poprun.reach.connections import agents; agents.ANSWER_LIMIT_S = 100.0; "
    "from poprun.__main__ import main; main()"
)
# Connects twice, and says nothing: others are dropped meanwhile.
CONNECT_TWICE = (
    "import socket, sys; s = [socket.create_connection(('h1', 22)) for _ in range(2)]; "
    "print([one.recv(1) for one in s], flush=True); sys.stdin.read()"
)


def test_an_sshd_may_drop_connections_when_there_are_many(make_bed: Make) -> None:
    bed = make_bed(hosts=2, sshd=["MaxStartups 2"])
    names = [f"n{number}" for number in range(6)]
    shell(
        bed.front,
        f"for name in {' '.join(names)}; do echo 10.31.0.2 $name >>/etc/hosts; done; "
        f"sed 's/^[^ ]*/n*/' {KNOWN} >/etc/all; mv /etc/all {KNOWN}",
    )

    silent = bed.front.start(
        "python3", "-c", CONNECT_TWICE, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert silent.stdout is not None
    assert silent.stdout.readline() == b"[b'S', b'S']\n"

    job = bed.front.start(
        *("python3", "-c", PATIENT, *JOB[1:]),
        *("--host", ",".join(names), "-n", "6", "hostname"),
        stderr=subprocess.PIPE,
    )
    log = bed["h1"].path("/var/log/sshd")
    wait_for(lambda: "drop connection" in log.read_text(), "a dropped connection")
    silent.communicate()
    _, err = job.communicate(timeout=200)

    assert err.decode() == (
        "poprun: error: n0 and n1 are the same machine. Name it once; "
        "-n says how many instances to start.\n"
    )


@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4", "hydra", "local"])
@pytest.mark.parametrize("names", ["h0.bed,h1.bed", "h0,[fd00::2]"])
def test_hosts_have_full_names_and_ipv6_addresses(
    hosts: Bed, mpi: str, names: str
) -> None:
    mpirun = mpi if mpi == "local" else mpirun_of(mpi)
    known = shell(hosts.front, f"sed 's/^[^ ]*/fd00::2/' {KNOWN}").strip()
    shell(hosts.front, f"cp {KNOWN} /etc/known; echo '{known}' >>{KNOWN}")
    try:
        ran = hosts.front.run(
            *("poprun", "--mpirun", mpirun, "--offline-mode=yes"),
            *("--host", names, "-n", "2", "hostname"),
        )
    finally:
        shell(hosts.front, f"mv /etc/known {KNOWN}")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split()) == ["h0", "h1"]


def test_hosts_that_are_not_on_the_subnet_are_named(hosts: Bed) -> None:
    job = (*JOB, "--host", "h0,h1,h2", "-n", "3", "hostname")

    strays = hosts.front.run(*job[:3], "--host-subnet", "10.31.0.0/31", *job[3:])
    fitting = hosts.front.run(*job[:3], "--host-subnet", "10.31.0.0/24", *job[3:])

    assert strays.returncode == 2
    lines = strays.stderr.removeprefix("poprun: error: ").splitlines()
    assert [line.partition(" of --host-subnet")[0] for line in lines] == [
        "The host h1 is not on the network 10.31.0.0/31",
        "The host h2 is not on the network 10.31.0.0/31",
    ]
    assert (fitting.returncode, fitting.stderr) == (0, "")
