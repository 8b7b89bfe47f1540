"""`make hosts`: a shell on one host of a bed."""

import os
import sys

import pexpect
from beds.rights import need_beds
from conftest import ROOT


def test_a_shell_has_a_terminal_and_other_hosts() -> None:
    need_beds()
    settings = {"HOSTS": "3", "BED_USER": "ipuser", "RATE": "1gbit", "DELAY_MS": "1"}
    shell = pexpect.spawn(
        sys.executable,
        ["-m", "beds.shell"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", **settings},
        encoding="utf-8",
        timeout=200,
    )
    shell.expect_exact("h2: 10.31.0.3")
    shell.expect_exact("$ ")
    shell.sendline("ssh h2 'echo $(id -un) on $(hostname)'; tty")
    shell.expect_exact("ipuser on h2")
    shell.expect("/dev/pts/[0-9]+")
    shell.sendline("sh -c 'echo be$((1))gun; exec sleep 600'")
    shell.expect_exact("be1gun")
    shell.sendintr()
    shell.expect_exact("$ ")
    shell.sendline("exit 3")
    shell.expect(pexpect.EOF)
    shell.wait()
    shell.close()

    assert shell.exitstatus == 3
