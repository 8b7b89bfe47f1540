"""Hosts of a bed can be lost in the ways in which machines are lost."""

import subprocess
from collections.abc import Callable

import pytest
from beds.bed import Bed
from conftest import wait_for

MakeBed = Callable[..., Bed]
SSH = ("ssh", "-oBatchMode=yes")
# To a host that does not answer. One that does may take longer on a busy machine.
IN_VAIN = (*SSH, "-oConnectTimeout=2")


def state(process: "subprocess.Popen[bytes]") -> str:
    with open(f"/proc/{process.pid}/stat") as stat:
        return stat.read().rpartition(") ")[2][0]


def test_a_cut_link_loses_what_is_sent_until_it_is_mended(make_bed: MakeBed) -> None:
    bed = make_bed(hosts=2)
    assert bed.front.output(*SSH, "h1", "hostname") == "h1\n"
    connection = bed.front.start(
        *(*SSH, "h1", "echo up; cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert connection.stdout
    assert connection.stdout.readline() == b"up\n"

    bed["h1"].link.cut()
    ran = bed.front.run(*IN_VAIN, "h1", "hostname")
    assert ran.stderr.strip() == "ssh: connect to host h1 port 22: Connection timed out"
    # Neither end has been told.
    assert connection.poll() is None
    assert "LOWER_UP" in bed["h1"].output("ip", "link", "show", "eth0")

    bed["h1"].link.mend()
    wait_for(
        lambda: bed.front.run(*SSH, "h1", "true").returncode == 0,
        "the mended link",
    )
    out, _ = connection.communicate(b"kept", timeout=200)
    assert (connection.returncode, out) == (0, b"kept")


def test_a_killed_host_closes_its_connections(make_bed: MakeBed) -> None:
    bed = make_bed(hosts=2)
    connection = bed.front.start(
        *(*SSH, "h1", "echo up; exec sleep 600"),
        # Its end would be sent, and what sshd has not read makes the loss another one.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert connection.stdout
    assert connection.stderr
    assert connection.stdout.readline() == b"up\n"

    bed["h1"].kill()

    connection.wait(timeout=200)
    message = connection.stderr.read()
    assert connection.returncode == 255
    assert b"closed by remote host" in message
    assert bed["h1"].processes() == []


def test_the_peers_of_a_host_without_power_see_nothing(make_bed: MakeBed) -> None:
    bed = make_bed(hosts=2)
    connection = bed.front.start(
        *(*SSH, "h1", "echo up; exec sleep 600"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert connection.stdout
    assert connection.stdout.readline() == b"up\n"

    bed["h1"].power_off()

    with pytest.raises(subprocess.TimeoutExpired):
        connection.wait(timeout=1)
    assert bed.front.run(*IN_VAIN, "h1", "true").returncode == 255
    connection.kill()


def test_a_paused_host_runs_nothing_until_it_is_resumed(make_bed: MakeBed) -> None:
    bed = make_bed(hosts=1)
    sleeper = bed.front.start("sleep", "600")
    wait_for(lambda: state(sleeper) == "S", "a process that sleeps")

    bed.front.pause()
    wait_for(lambda: state(sleeper) == "T", "a process that is stopped")

    bed.front.resume()
    wait_for(lambda: state(sleeper) == "S", "a process that sleeps again")


def test_a_host_without_sshd_refuses_connections(make_bed: MakeBed) -> None:
    bed = make_bed(hosts=2)
    bed["h1"].stop_sshd()
    ran = bed.front.run(*SSH, "h1", "true")
    assert ran.stderr.strip() == "ssh: connect to host h1 port 22: Connection refused"

    bed["h1"].start_sshd()
    bed.front.output(*SSH, "h1", "true")


def test_two_beds_at_once_do_not_meet(make_bed: MakeBed) -> None:
    one, other = make_bed(hosts=2), make_bed(hosts=2)
    one["h1"].path("/run/mark").touch()

    assert one.front.output(*SSH, "h1", "ls", "/run/mark") == "/run/mark\n"
    # Nor does the one know the other's key.
    assert other.front.output(*SSH, "h1", "find", "/run/", "-name", "mark") == ""

    one.close()
    assert other.front.output(*SSH, "h1", "hostname") == "h1\n"


@pytest.mark.parametrize("loss", ["kill", "power_off"])
def test_a_host_that_was_killed_can_be_started_again(
    make_bed: MakeBed, loss: str
) -> None:
    bed = make_bed(hosts=2)
    bed["h1"].run("touch", "/tmp/left")
    getattr(bed["h1"], loss)()

    host = bed.power_on("h1")

    assert host is bed["h1"]
    assert bed.front.output(*SSH, "h1", "hostname; ls /tmp") == "h1\n"
    bed.assert_nothing_is_left()
