"""Which instance reads what, and that none waits for input meant for another."""

import os
import pty
import subprocess

import pytest
from conftest import POPRUN, Poprun, wait_for


def job(instances: int, mpirun: str = "local") -> list[str]:
    number = str(instances)
    return ["--mpirun", mpirun, "--num-instances", number, "--num-replicas", number]


@pytest.mark.mpi
def test_a_loop_that_reads_lines_loses_none_to_poprun(
    poprun: Poprun, every_mpirun: str
) -> None:
    loop = 'seq 5 | while read line; do "$@" echo $line; done'
    ran = subprocess.run(
        ["sh", "-c", loop, "sh", POPRUN, *job(1, every_mpirun)],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        timeout=200,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"1\n2\n3\n4\n5\n", b"")


INPUT = {
    # The data is there before poprun looks.
    "pipe": (
        "(printf data; : > w) | (until [ -e w ]; do sleep 0.02; done; {})",
        "4 bytes",
    ),
    "file": ("printf d > data; (exec {} < data); exit $?", "1 byte"),
    "pipe-that-ends": ("printf '' | {}", ""),
    "pipe-without-data": ("mkfifo pipe; {} <> pipe", ""),
    "file-that-was-read": ("printf d > data; (cat; {}; :) < data > /dev/null", ""),
    "device": ("{} < /dev/zero", ""),
    "none-is-wanted": ("export POPRUN_STDIN=none; printf data | {}", ""),
    "script-of-the-shell": ("printf '{}\\n\\n' | sh", ""),
}


@pytest.mark.parametrize("shape", INPUT)
def test_input_that_no_instance_reads_is_reported(poprun: Poprun, shape: str) -> None:
    command, size = INPUT[shape]
    ran = subprocess.run(
        ["sh", "-c", command.format(f"{POPRUN} {' '.join(job(2))} true")],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        timeout=200,
        text=True,
    )

    words = (
        f"poprun: warning: No instance reads the standard input, which has {size}. Add "
        "--stdin 0 to let instance 0 read it, or --stdin all to give each instance a "
        "copy.\n"
    )
    assert (ran.returncode, ran.stderr) == (0, words if size else "")


@pytest.mark.mpi
def test_one_instance_gets_every_byte_and_the_end(
    poprun: Poprun, every_mpirun: str
) -> None:
    data = bytes(range(256)) * 40_000
    (poprun.directory / "data").write_bytes(data)
    with open(poprun.directory / "data", "rb") as file:
        ran = poprun(
            *job(2, every_mpirun),
            *("--stdin", "1", "sh", "-c", "cat > copy.$RANK"),
            stdin=file,
        )

    assert (ran.code, ran.stderr) == (0, "")
    assert (poprun.directory / "copy.0").read_bytes() == b""
    assert (poprun.directory / "copy.1").read_bytes() == data


@pytest.mark.mpi
def test_all_instances_get_every_byte_and_the_end(
    poprun: Poprun, every_mpirun: str
) -> None:
    data = bytes(range(256)) * 4_000
    (poprun.directory / "data").write_bytes(data)
    with open(poprun.directory / "data", "rb") as file:
        ran = poprun(
            *job(3, every_mpirun),
            *("--stdin", "all", "sh", "-c", "cat > copy.$RANK"),
            stdin=file,
        )

    assert (ran.code, ran.stderr) == (0, "")
    for rank in range(3):
        assert (poprun.directory / f"copy.{rank}").read_bytes() == data


def test_an_instance_that_does_not_read_keeps_the_others_waiting_only_while_it_runs(
    poprun: Poprun,
) -> None:
    data = b"x" * 1_000_000
    (poprun.directory / "data").write_bytes(data)
    with open(poprun.directory / "data", "rb") as file:
        ran = poprun(
            *job(2),
            *("--stdin", "all", "sh", "-c", "test $RANK = 1 || cat > copy"),
            stdin=file,
        )

    assert (ran.code, ran.stderr) == (0, "")
    assert (poprun.directory / "copy").read_bytes() == data


@pytest.mark.parametrize("name", ["the data", "./0", "link"])
def test_each_instance_reads_a_file_from_its_beginning(
    poprun: Poprun, name: str
) -> None:
    (poprun.directory / "the data").write_text("one\ntwo\n")
    (poprun.directory / "0").write_text("one\ntwo\n")
    (poprun.directory / "link").symlink_to("0")
    ran = poprun(*job(2), "--stdin", name, "sh", "-c", "cat > copy.$RANK")

    assert (ran.code, ran.stderr) == (0, "")
    for rank in range(2):
        assert (poprun.directory / f"copy.{rank}").read_text() == "one\ntwo\n"


def test_a_file_that_is_poprun_s_own_stdin_has_a_name_too(poprun: Poprun) -> None:
    (poprun.directory / "data").write_text("one\n")
    with open(poprun.directory / "data", "rb") as file:
        ran = poprun(*job(2), "--stdin", "/dev/stdin", "cat", stdin=file)

    assert (ran.code, ran.stdout) == (0, "one\none\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "2",
            "--stdin is 2, but the job has only 2 instances. Give a number from 0 to "
            "1. A file of that name is ./2.",
        ),
        ("directory", "--stdin is 'directory', a directory. Name a file in it."),
        (
            "pipe",
            "--stdin is 'pipe', a named pipe, which can have only one reader. Let "
            "poprun read it, for one instance or for all: --stdin all < pipe",
        ),
        (
            "nothing",
            "--stdin is 'nothing', which cannot be read: No such file or "
            "directory. It must be none, all, the number of an instance or a "
            "file.",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_start(
    poprun: Poprun, text: str, sentence: str
) -> None:
    (poprun.directory / "directory").mkdir()
    os.mkfifo(poprun.directory / "pipe")
    ran = poprun(*job(2), "--stdin", text, "touch", "started")

    assert (ran.code, ran.stderr) == (2, f"poprun: error: {sentence}\n")
    assert not (poprun.directory / "started").exists()


@pytest.mark.mpi
def test_a_pipe_without_a_writer_delays_no_instance(
    poprun: Poprun, every_mpirun: str
) -> None:
    os.mkfifo(poprun.directory / "pipe")
    silent = os.open(poprun.directory / "pipe", os.O_RDWR)
    ran = poprun(*job(2, every_mpirun), "sh", "-c", "cat; echo done", stdin=silent)
    os.close(silent)

    assert (ran.code, ran.stdout, ran.stderr) == (0, "done\ndone\n", "")


@pytest.mark.parametrize("which", ["none", "0", "all"])
def test_a_stdin_that_is_closed_is_at_its_end(poprun: Poprun, which: str) -> None:
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", POPRUN, *job(2), "--stdin", which, "cat"],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        timeout=200,
    )

    assert (closed.returncode, closed.stdout, closed.stderr) == (0, b"", b"")


@pytest.mark.parametrize("which", ["0", "all"])
def test_a_program_that_waits_for_input_is_stopped_like_any_other(
    poprun: Poprun, which: str
) -> None:
    os.mkfifo(poprun.directory / "pipe")
    silent = os.open(poprun.directory / "pipe", os.O_RDWR)
    ran = poprun(*job(2), "--stdin", which, "--timeout", "0.5", "cat", stdin=silent)
    os.close(silent)

    assert ran.code == 124


def test_a_terminal_stays_a_terminal_for_the_one_that_reads_it(
    poprun: Poprun,
) -> None:
    script = poprun.script(
        "ask.py",
        "import os, sys\n"
        "print(os.environ['RANK'], sys.stdin.isatty())\n"
        "open('asked.' + os.environ['RANK'], 'w')\n"
        "print(os.environ['RANK'], repr(input()) if sys.stdin.isatty() else None)\n",
    )
    ours, theirs = pty.openpty()
    process = poprun.start(*job(2), "--stdin", "1", "python", script, stdin=theirs)
    wait_for((poprun.directory / "asked.1").exists, "a question")
    os.write(ours, b"Ann\n")
    out, err = process.communicate(timeout=200)
    os.close(ours)
    os.close(theirs)

    assert (process.returncode, err) == (0, b"")
    assert sorted(out.decode().splitlines()) == [
        "0 False",
        "0 None",
        "1 'Ann'",
        "1 True",
    ]
