import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import wait_for

from poprun.helpers import processes
from poprun.helpers.helper_commands import ENTRY
from poprun.helpers.local_launcher import split_commands


@pytest.mark.parametrize(
    ("words", "cut"),
    [
        (["a"], [["a"]]),
        (["a", "b", ":", "a", "c"], [["a", "b"], ["a", "c"]]),
        (["a", "::", ":", "b"], [["a", "::"], ["b"]]),
    ],
)
def test_words_are_cut_at_each_colon(words: list[str], cut: list[list[str]]) -> None:
    assert split_commands(words) == cut


def local(*words: str, cwd: Path, stderr: int | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", ENTRY, "local", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


@pytest.mark.parametrize(
    ("scripts", "code"),
    [
        (["exit 0", "exit 0"], 0),
        (["exit 0", "exit 7"], 7),
        (["kill -KILL $$"], 137),
        (["exit 0", "exec /nothing/there 2>/dev/null"], 127),
    ],
)
def test_it_waits_for_all_and_ends_with_a_code_that_one_of_them_had(
    scripts: list[str], code: int, tmp_path: Path
) -> None:
    words = [word for script in scripts for word in (*sh(script), ":")][:-1]

    with local(*words, cwd=tmp_path) as launcher:
        assert launcher.wait(200) == code


def test_a_program_that_is_not_there_ends_with_127(tmp_path: Path) -> None:
    with local("/nothing/there", cwd=tmp_path) as launcher:
        assert launcher.wait(200) == 127


@pytest.mark.parametrize("options", [[], ["--survive"]])
def test_the_death_of_one_ends_the_others(options: list[str], tmp_path: Path) -> None:
    words = [*options, *sh("kill -KILL $$"), ":", *sh("exec sleep 600")]

    launcher = subprocess.run(
        [sys.executable, "-I", "-S", ENTRY, "local", *words],
        cwd=tmp_path,
        capture_output=True,
        timeout=200,
    )

    assert launcher.returncode == 137
    stderr = launcher.stderr.decode()
    unless = " unless poprun lets them go on" if options else ""
    assert stderr.endswith(
        f" was killed by signal 9, and the local launcher ends the others{unless}.\n"
    )


def test_with_survive_the_others_go_on_after_a_failure_once_poprun_knows_all(
    tmp_path: Path,
) -> None:
    words = *sh("kill -USR1 $PPID; kill -KILL $$"), ":", *sh("sleep 2; touch ended")

    with local("--survive", *words, cwd=tmp_path) as launcher:
        assert launcher.wait(200) == 0
    # Otherwise it would have been killed after 1.5 seconds.
    assert (tmp_path / "ended").exists()


def test_with_survive_the_others_go_on_when_poprun_knows_all_after_a_failure(
    tmp_path: Path,
) -> None:
    other = "until [ -e go ]; do sleep 0.1; done; sleep 2; touch ended; exit 4"
    words = "--survive", *sh("echo $$; exit 3"), ":", *sh(other)
    # While the pipe is full, the launcher waits after it has seen the failure.
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    with local(*words, cwd=tmp_path, stderr=write) as launcher:
        assert launcher.stdout
        failed = int(launcher.stdout.readline())
        wait_for(lambda: processes.process(failed) is None, "the failure")
        launcher.send_signal(signal.SIGUSR1)
        os.read(read, 1 << 20)
        (tmp_path / "go").touch()
        assert launcher.wait(200) == 3
    os.close(read)
    os.close(write)
    # Otherwise it would have been killed after 1.5 seconds.
    assert (tmp_path / "ended").exists()


def test_sigterm_ends_the_others_even_if_they_may_survive(tmp_path: Path) -> None:
    sleeper = "echo ready; exec sleep 600"
    scripts = f"kill -TERM $PPID; kill -USR1 $PPID; {sleeper}", sleeper
    words = [word for script in scripts for word in (*sh(script), ":")][:-1]

    with local("--survive", *words, cwd=tmp_path) as launcher:
        assert launcher.wait(200) == 1


def test_sigterm_ends_even_those_that_do_not_listen(tmp_path: Path) -> None:
    deaf = sh("trap '' TERM; echo ready; while :; do sleep 0.1; done")

    with local(*deaf, ":", *sh("echo ready; exec sleep 600"), cwd=tmp_path) as launcher:
        assert launcher.stdout
        assert [launcher.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(200) == 1
        # The end of file: no process is left that could write.
        assert launcher.stdout.read() == ""
        assert os.listdir(tmp_path) == []


def test_a_command_that_cannot_be_started_again_is_tried_later(tmp_path: Path) -> None:
    command = tmp_path / "command"
    # The first start leaves nothing that could be started again.
    command.write_text(
        "#!/bin/sh\nuntil [ -e known ]; do sleep 0.1; done; rm command; exit 3\n"
    )
    command.chmod(0o700)
    script = (
        "kill -USR1 $PPID; touch known; while [ -e command ]; do sleep 0.1; done\n"
        "kill -USR2 $PPID; echo asked; while [ ! -e again ]; do sleep 0.1; done"
    )
    words = ["--survive", *sh(script), ":", str(command)]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", ENTRY, "local", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stderr
        lines = iter(launcher.stderr)
        wanted = f"The local launcher cannot start {command}: No such file"
        assert any(line.startswith(wanted) for line in lines)
        new = tmp_path / "new"
        new.write_text("#!/bin/sh\ntouch again\n")
        new.chmod(0o700)
        new.rename(command)
        assert launcher.wait(200) == 0
