"""A terminal and the instances of all hosts: Ctrl-Z, fg, Ctrl-\\, what is typed."""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from beds.bed import Bed
from beds.host import Host
from conftest import mpirun_of, wait_for

pytestmark = pytest.mark.mpi

MPIS = ["openmpi5", "openmpi4", "hydra", "local"]
# No shell: one that starts a command by vfork cannot be stopped until the command runs.
UNTIL_GO = """
import os, time
def wait_for_go():
    with open("/tmp/pid", "w") as file:
        file.write(str(os.getpid()))
    os.rename("/tmp/pid", "/tmp/up")
    while not os.path.exists("/tmp/go"):
        time.sleep(0.05)
wait_for_go()
print("done")
"""


def poprun(mpi: str) -> list[str]:
    path = "local" if mpi == "local" else mpirun_of(mpi)
    words = ["poprun", "--mpirun", path, "--offline-mode=yes", "--host", "h0,h1"]
    return [*words, "-n", "2", "python3", "-c", UNTIL_GO]


@pytest.fixture
def hosts(bed: Bed) -> Iterator[list[Host]]:
    """The two hosts of a job, which its instances have for themselves."""
    yield bed.hosts[:2]
    for host in bed.hosts[:2]:
        host.output("rm", "-f", "/tmp/up", "/tmp/go")


def wait_for_instances(hosts: list[Host]) -> None:
    wait_for(lambda: all(h.path("/tmp/up").exists() for h in hosts), "the instances")


def is_stopped(stat: Path) -> bool:
    return stat.read_text().rpartition(") ")[2][0] == "T"


def are_stopped(hosts: list[Host]) -> bool:
    pids = [host.path("/tmp/up").read_text() for host in hosts]
    stats = [
        host.path(f"/proc/{pid}/stat") for host, pid in zip(hosts, pids, strict=True)
    ]
    return all(map(is_stopped, stats))


def let_them_end(hosts: list[Host]) -> None:
    for host in hosts:
        host.output("touch", "/tmp/go")


@pytest.mark.parametrize("mpi", MPIS)
def test_what_is_stopped_for_a_while_goes_on(hosts: list[Host], mpi: str) -> None:
    process = hosts[0].start(*poprun(mpi), stdout=subprocess.PIPE)
    wait_for_instances(hosts)

    process.send_signal(signal.SIGTSTP)
    wait_for(lambda: are_stopped(hosts), "stopped instances")
    # It stops itself last, and would not hear a SIGCONT that came before.
    wait_for(lambda: is_stopped(Path(f"/proc/{process.pid}/stat")), "poprun's stop")
    let_them_end(hosts)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=200)

    assert (process.returncode, out) == (0, b"done\ndone\n")


def test_a_shell_s_fg_continues_what_its_ctrl_z_has_stopped(hosts: list[Host]) -> None:
    shell = hosts[0].spawn("bash", "--norc", "--noprofile", "-i", env={"PS1": "$ "})
    shell.expect_exact("$ ")
    words = [*poprun("local")[:-1], '"$(cat /root/program)"']
    hosts[0].path("/root/program").write_text(UNTIL_GO)
    shell.sendline(" ".join(words))
    wait_for_instances(hosts)

    shell.sendcontrol("z")
    shell.expect(r"\[1\]\+ +Stopped")
    wait_for(lambda: are_stopped(hosts), "stopped instances")
    shell.sendline("fg")
    let_them_end(hosts)

    shell.expect("done\r\n")
    shell.expect("done\r\n")
    # Until then, what is typed is for the job.
    shell.expect_exact("$ ")
    shell.sendline("echo code $?; exit")
    shell.expect("code 0")
    shell.expect(pexpect.EOF)
    shell.wait()
    hosts[0].output("rm", "/root/program")


@pytest.mark.parametrize("mpi", MPIS)
def test_sigquit_shows_the_stacks_of_all_hosts(hosts: list[Host], mpi: str) -> None:
    process = hosts[0].start(*poprun(mpi), stderr=subprocess.PIPE)
    wait_for_instances(hosts)

    process.send_signal(signal.SIGQUIT)
    _, err = process.communicate(timeout=200)

    assert process.returncode == 131
    label = r"poprun: Python stacks of instance (\d) \(PID \d+\):\n"
    _, *shown = re.split(label, err.decode())
    assert shown[::2] == ["0", "1"]
    assert all("in wait_for_go\n" in text for text in shown[1::2])


READS = """
import sys
print("terminal" if sys.stdin.isatty() else "pipe", sys.stdout.isatty())
for line in sys.stdin:
    print("got", line.strip())
print("end")
"""


@pytest.mark.parametrize(
    ("rank", "what"), [pytest.param(0, "terminal"), pytest.param(1, "pipe")]
)
def test_lines_that_are_typed_reach_an_instance_of_any_host(
    hosts: list[Host], rank: int, what: str
) -> None:
    program = f"import os\nif os.environ['RANK'] == '{rank}':" + READS.replace(
        "\n", "\n    "
    )
    words = ("poprun", "--mpirun", "local", "--offline-mode=yes", "--host", "h0,h1")
    terminal = hosts[0].spawn(
        *(*words, "-n", "2", "--stdin", str(rank), "python3", "-c", program)
    )

    shown = ""
    for expected, typed in ((f"{what} True", "Ann"), ("got Ann", "Bob")):
        terminal.expect_exact(f"{expected}\r\n")
        shown += str(terminal.before)
        terminal.sendline(typed)
    terminal.expect_exact("got Bob\r\n")
    terminal.sendeof()
    terminal.expect_exact("end\r\n")
    terminal.wait()

    assert terminal.exitstatus == 0
    warning = (
        "poprun: warning: Instance 1 runs on h1, so it reads what you type from a pipe "
        "instead of a terminal: a password is shown as you type it. Start poprun on h1 "
        "to give it a terminal."
    )
    assert shown.count(warning) == rank


DEBUGGED = """
import os, time
value = 41
if os.environ["RANK"] == RANK:
    breakpoint()
    print("goes on")
    time.sleep(600)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_an_instance_of_any_host_is_debugged(hosts: list[Host], rank: int) -> None:
    program = DEBUGGED.replace("== RANK", f"== '{rank}'")
    words = ("poprun", "--mpirun", "local", "--offline-mode=yes", "--host", "h0,h1")
    terminal = hosts[0].spawn(
        *(*words, "-n", "2", "--pdb", str(rank), "--tag-format=none"),
        *("python3", "-c", program),
    )

    terminal.expect_exact("(Pdb) ")
    terminal.sendline("p value + 1")
    terminal.expect_exact("42\r\n(Pdb) ")
    terminal.sendintr()
    terminal.expect_exact("--KeyboardInterrupt--\r\n(Pdb) ")
    terminal.sendline("c")
    terminal.expect_exact("goes on\r\n")
    terminal.sendintr()
    terminal.expect_exact("Interrupted: c goes on.\r\n")
    terminal.expect_exact("(Pdb) ")
    terminal.sendline("q")
    host = f"h{rank}"
    terminal.expect_exact(
        f"Instance {rank} on {host} exited with code 1; its stderr ends with "
        '"bdb.BdbQuit: the debugger has ended this instance.".\r\n'
    )
    terminal.wait()

    assert terminal.exitstatus == 1
