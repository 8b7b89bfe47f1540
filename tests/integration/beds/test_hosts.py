"""The hosts of a bed are machines of their own that reach each other over ssh."""

import signal
from collections.abc import Callable

import pexpect
import pytest
from beds.bed import Bed
from beds.guide import ADDRESSES
from conftest import wait_for


@pytest.mark.parametrize("name", ["h1", "h1.bed", "10.31.0.2"])
def test_hosts_reach_each_other_over_ssh_without_a_question(
    bed: Bed, name: str
) -> None:
    ran = bed.front.run("ssh", name, "hostname")

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "h1\n", "")


def test_an_unknown_name_is_unknown_at_once(bed: Bed) -> None:
    ran = bed.front.run("ssh", "h7", "hostname")

    assert ran.stderr.strip() == (
        "ssh: Could not resolve hostname h7: Name or service not known"
    )


def test_an_ordinary_user_reaches_other_hosts(bed: Bed) -> None:
    ran = bed.front.run("ssh", "h2", "id -un; pwd; echo $PATH", user="ipuser")

    assert ran.stdout.splitlines()[:2] == ["ipuser", "/home/ipuser"]
    assert ran.stderr == ""


def test_a_command_has_the_environment_of_a_login(bed: Bed) -> None:
    words = ["sh", "-c", 'echo "$USER $HOME $PWD $GREETING"; cat']
    ran = bed["h1"].run(
        *words, user="ipuser", env={"GREETING": "hello"}, cwd="/tmp", stdin="typed"
    )

    assert ran.stdout == "ipuser /home/ipuser /tmp hello\ntyped"


def test_processes_and_temporary_files_of_a_host_are_its_own(bed: Bed) -> None:
    places = ["/dev/shm", "/run", "/tmp", "/var/tmp"]
    sleeper = bed.front.start("sleep", "600")
    for place in places:
        bed.front.path(f"{place}/mark").touch()
    try:
        # What enters the host for it has these words on its command line, too.
        wait_for(lambda: ": sleep 600" in str(bed.front.processes()), "the sleeper")
        assert "sleep 600" in bed.front.output("ps", "-ef")
        assert "sleep" not in bed["h1"].output("ps", "-ef")
        assert bed["h1"].output("ls", *places).count("mark") == 0
        process, *files = bed.leftovers()
        assert process.endswith(": sleep 600")
        assert files == [f"h0: {place}/mark" for place in places]
    finally:
        sleeper.kill()
        sleeper.wait()
        for place in places:
            bed.front.path(f"{place}/mark").unlink()


def test_home_is_shared_where_that_is_asked_for(
    bed: Bed, make_bed: Callable[..., Bed]
) -> None:
    def seen_by_another_host(bed: Bed) -> str:
        bed.front.output("touch", "mark")
        return bed["h1"].output("ls")

    # Other tests of this bed may have left files there.
    assert "mark" in seen_by_another_host(bed).split()
    bed.front.output("rm", "mark")
    assert seen_by_another_host(make_bed(hosts=2)) == ""


def test_the_machines_own_directories_cannot_be_written(bed: Bed) -> None:
    ran = bed.front.run("touch", "/usr/mark")

    assert "Read-only file system" in ran.stderr


def test_what_a_host_changes_in_etc_is_its_own(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=2)
    bed.front.output("sh", "-c", "echo 10.31.0.2 alias >> /etc/hosts")

    assert bed.front.output("ssh", "-oHostKeyAlias=h1", "alias", "hostname") == "h1\n"
    assert "alias" not in bed["h1"].output("cat", "/etc/hosts")


def test_a_key_that_is_not_known_is_refused(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=2, known_hosts=False)
    ran = bed.front.run("ssh", "-oBatchMode=yes", "h1", "hostname")

    assert ran.returncode == 255
    assert ran.stderr.strip() == "Host key verification failed."


def test_hosts_have_the_names_and_addresses_given(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(
        names=["vipu", "poplar-1", "poplar-2", "poplar-3"],
        addresses=ADDRESSES,
        aliases=["other-name"],
        ipv6=True,
    )
    for address in [*ADDRESSES[1:], "fd00::2"]:
        options = [] if "." in address else ["-oHostKeyAlias=poplar-1"]
        bed.front.output("ssh", *options, address, "true")

    for name in ("10.3.8.153", "poplar-3.bed", "other-name"):
        assert bed.front.output("ssh", name, "hostname") == "poplar-3\n"


def test_sshd_takes_settings(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=1, sshd=["AllowUsers ipuser"])

    assert "Permission denied" in bed.front.run("ssh", "h0", "true").stderr
    bed.front.output("ssh", "h0", "true", user="ipuser")


def test_a_user_with_a_terminal_is_asked_for_a_password(bed: Bed) -> None:
    options = ["-oPreferredAuthentications=password", "-oBatchMode=no"]
    terminal = bed.front.spawn("ssh", *options, "ipuser@h1", "hostname")
    terminal.expect_exact("ipuser@h1's password:")
    terminal.sendline("poprun")
    terminal.expect_exact("h1\r\n")
    terminal.expect(pexpect.EOF)
    terminal.wait()

    assert terminal.exitstatus == 0


def test_a_terminals_signals_reach_the_host(bed: Bed) -> None:
    terminal = bed["h1"].spawn("sh", "-c", "tty; exec sleep 600", user="ipuser")
    terminal.expect("/dev/pts/[0-9]+\r\n")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    terminal.wait()

    assert terminal.signalstatus == signal.SIGINT
