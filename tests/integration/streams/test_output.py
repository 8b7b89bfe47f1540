"""What instances say arrives whole, unchanged and in time, or poprun says so."""

import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from conftest import POPRUN, Poprun, wait_for

from poprun.output.lines.tracebacks import BETWEEN_LINES_S

# Waits for a file of that name, which the test makes.
WAIT = """
import os, sys, time
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""


def job(instances: int, mpirun: str = "local") -> list[str]:
    number = str(instances)
    return ["--mpirun", mpirun, "--num-instances", number, "--num-replicas", number]


def mib(rank: int, stream: int) -> bytes:
    """Return 1 MB that no terminal would survive."""
    return random.Random(10 * rank + stream).randbytes(1_000_000)


def read(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(descriptor, size - len(data))
        assert piece, f"the output ended after {data!r}"
        data += piece
    return data


@pytest.mark.mpi
def test_every_byte_arrives_on_the_console_and_in_files(
    poprun: Poprun, every_mpirun: str
) -> None:
    for rank in range(2):
        for stream in (1, 2):
            (poprun.directory / f"{rank}.{stream}").write_bytes(mib(rank, stream))
    ran = poprun(
        *job(2, every_mpirun),
        *("--mpi-global-args", "--output-filename 'the logs'"),
        *("--only-output-from-instance", "1"),
        *("sh", "-c", "cat $RANK.2 >&2 & cat $RANK.1; wait"),
    )

    logs = poprun.directory / "the logs" / "1"
    assert ran.code == 0
    assert (ran.out, ran.err) == (mib(1, 1), mib(1, 2))
    for rank in range(2):
        assert (logs / f"rank.{rank}/stdout").read_bytes() == mib(rank, 1)
        assert (logs / f"rank.{rank}/stderr").read_bytes() == mib(rank, 2)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"x" * 10_000_000, id="10-MB-without-a-newline"),
        pytest.param(b"10%\r20%\r" * 1000 + b"done", id="bars"),
        pytest.param(bytes(1000) + b"\n" + bytes(1000), id="NULs"),
        pytest.param(b"line\r\nhalf a letter: \xc3", id="half-a-letter"),
        pytest.param(b"\n" * 10_000, id="empty-lines"),
        pytest.param(b"\x04\x03\x1a\x11\x13\x7f\n", id="control-characters"),
    ],
)
def test_whatever_an_instance_writes_is_left_alone(poprun: Poprun, data: bytes) -> None:
    (poprun.directory / "data").write_bytes(data)
    ran = poprun(*job(1), "cat", "data")

    assert (ran.code, ran.stderr) == (0, "")
    assert ran.out == data


@pytest.mark.mpi
def test_tags_are_the_same_on_every_mpi_and_the_only_addition(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun(
        *job(2, every_mpirun),
        *("--mpi-global-args", "--tag-output"),
        *("sh", "-c", "echo ' out'; echo; printf 'error' >&2; echo $RANK"),
    )

    assert ran.code == 0
    assert sorted(ran.stdout.splitlines()) == [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: out",
        "[1,0]<stdout>:0",
        "[1,1]<stdout>:",
        "[1,1]<stdout>: out",
        "[1,1]<stdout>:1",
    ]
    assert ran.stderr in (
        "[1,0]<stderr>:error\n[1,1]<stderr>:error",
        "[1,1]<stderr>:error\n[1,0]<stderr>:error",
    )


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ((), ("", "")),
        (("--mpi-global-args", "--tag-output"), ("[1,0]<stdout>:", "[1,1]<stdout>:")),
    ],
    ids=["bare", "tagged"],
)
def test_no_line_of_two_in_a_hurry_is_lost_torn_or_late(
    poprun: Poprun, options: tuple[str, ...], tags: tuple[str, str]
) -> None:
    ran = poprun(*job(2), *options, "sh", "-c", 'seq -f "$RANK %.0f" 100000')

    lines = ran.stdout.splitlines()
    assert (ran.code, ran.stderr, len(lines)) == (0, "", 200_000)
    for rank, tag in enumerate(tags):
        own = [line for line in lines if line.startswith(f"{tag}{rank} ")]
        assert own == [f"{tag}{rank} {number}" for number in range(1, 100_001)]


def test_long_lines_of_several_do_not_mix(poprun: Poprun) -> None:
    script = poprun.script(
        "say.py",
        "import os\n"
        "for _ in range(2):\n"
        "    print(os.environ['RANK'] * 10_000_000, flush=True)\n",
    )
    ran = poprun(*job(3), "python", script)

    lines = ran.out.splitlines()
    assert (ran.code, ran.stderr, len(lines)) == (0, "", 6)
    assert all(line == line[:1] * 10_000_000 for line in lines)


# Writes to a file how long Python takes to print the traceback.
TIMED = """
import os, sys, time
def print_timed(*error):
    began = time.monotonic()
    usual(*error)
    with open("took." + os.environ["RANK"], "w") as file:
        file.write(str(time.monotonic() - began))
usual, sys.excepthook = sys.excepthook, print_timed
"""


def run_timed(poprun: Poprun, *words: str) -> tuple[int, str]:
    """Run a job of three with TIMED; return its exit code and what it said.

    It is run again if poprun did not wait for the rest of a traceback, because an
    instance was stopped while it printed that.
    """
    limit = slowest = BETWEEN_LINES_S / 2
    while slowest >= limit:
        ran = poprun(*job(3), "--keep-going", *words)
        times = [poprun.directory / f"took.{rank}" for rank in range(3)]
        slowest = max(float(file.read_text()) for file in times)
    return ran.code, ran.stderr


def test_tracebacks_of_several_do_not_mix_and_say_whose_they_are(
    poprun: Poprun,
) -> None:
    script = poprun.script(
        "fail.py",
        TIMED + "def descend(depth):\n"
        "    if depth: descend(depth - 1)  # and so on\n"
        "    else: raise ValueError('instance ' + os.environ['RANK'])\n"
        "descend(1)\n",
    )
    code, err = run_timed(poprun, "python", script)

    shown = err.partition("poprun: the last lines of")[0]
    first, *others = shown.split("Traceback (most recent call last):\n")
    assert (code, first, len(others)) == (1, "", 3)
    ranks = [re.findall(r"^ValueError: instance (\d)$", o, re.M) for o in others]
    assert sorted(ranks) == [["0"], ["1"], ["2"]]
    [a], [b], [c] = ranks
    assert (
        f"poprun: The traceback before this one is instance {a}'s, and this one is "
        f"instance {b}'s:\n" in others[0]
    )
    assert f"poprun: This traceback is instance {c}'s:\n" in others[1]


def test_one_mistake_of_all_instances_is_shown_once(poprun: Poprun) -> None:
    script = poprun.script(
        "fail.py", TIMED + "def step(): raise ValueError('nan')\nstep()\n"
    )
    code, err = run_timed(poprun, "--output-filename", "logs", "python", script)

    _, *rest = err.split("Traceback (most recent call last):\n")
    text = rest[0].partition("poprun: ")[0]
    files = [Path(poprun.directory, f"logs/1/rank.{n}/stderr") for n in range(3)]
    assert (code, len(rest)) == (1, 1)
    assert [file.read_text().endswith(text) for file in files] == [True] * 3
    assert "instances 0 to 2" in err.lower()
    assert "the last lines of" not in err
    assert re.search(r"localhost exited with code 1: ValueError: nan\n$", err)


def test_prints_of_python_come_at_once(poprun: Poprun) -> None:
    script = poprun.script("say.py", WAIT + "print('ready')\nwait('go')\nprint('ok')")
    process = poprun.start(*job(1), "python", script)
    assert process.stdout

    assert read(process.stdout.fileno(), 6) == b"ready\n"
    (poprun.directory / "go").touch()
    assert process.communicate(timeout=200) == (b"ok\n", b"")
    assert process.returncode == 0


def test_a_prompt_is_shown_and_lines_of_others_come_all_the_same(
    poprun: Poprun,
) -> None:
    script = poprun.script(
        "ask.py",
        WAIT
        + """
if os.environ["RANK"] == "0":
    print("Name? ", end="", flush=True)
    wait("answer")
    print("Ann")
else:
    wait("asked")
    print("a line of another")
    wait("answer")
""",
    )
    process = poprun.start(*job(2), "python", script)
    assert process.stdout
    descriptor = process.stdout.fileno()

    assert read(descriptor, 6) == b"Name? "
    (poprun.directory / "asked").touch()
    assert read(descriptor, 18) == b"a line of another\n"
    (poprun.directory / "answer").touch()
    assert process.communicate(timeout=200) == (b"Ann\n", b"")


def test_stderr_that_is_merged_keeps_its_place_among_the_lines(poprun: Poprun) -> None:
    ran = poprun(
        *job(1),
        "--mpi-global-args=--merge-stderr-to-stdout",
        *("sh", "-c", "for n in 1 2 3; do echo out $n; echo err $n >&2; done; exit 3"),
    )

    assert ran.stdout == "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"
    assert ran.stderr.startswith(
        "poprun: the last lines of instance 0's stderr:\n    out 1\n    err 1\n"
    )


def test_only_the_output_of_one_instance_is_shown(poprun: Poprun) -> None:
    ran = poprun(
        *job(3),
        "--only-output-from-instance=2",
        *("sh", "-c", "echo out $RANK; echo err $RANK >&2"),
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "out 2\n", "err 2\n")


def test_an_instance_that_is_not_shown_can_still_say_why_it_failed(
    poprun: Poprun,
) -> None:
    ran = poprun(
        *job(3),
        "--only-output-from-instance=2",
        *(
            "sh",
            "-c",
            r"printf 'bad\nno use\n' >&2; test $RANK = 1 || sleep 600; exit 3",
        ),
        environ={"SLURMD_NODENAME": "localhost"},
    )

    assert ran.code == 3
    assert ran.stderr.removeprefix("bad\nno use\n") == (
        "poprun: the last lines of instance 1's stderr:\n"
        "    bad\n"
        "    no use\n"
        "poprun: error: Instance 1 on localhost exited with code 3; its stderr ends "
        'with "no use".\n'
    )


@pytest.mark.mpi
def test_a_traceback_comes_once_and_its_last_line_is_the_last_of_all(
    poprun: Poprun, every_mpirun: str
) -> None:
    poprun.script(
        "train.py",
        "import os, time\n"
        "if os.environ['RANK'] != '1':\n"
        "    time.sleep(600)\n"
        "def descend(depth):\n"
        "    if depth:\n"
        "        descend(depth - 1)  # and so on\n"
        "    raise ValueError('the loss is nan')\n"
        "for depth in range(0, 20, 19):\n"
        "    try:\n"
        "        descend(depth)\n"
        "    except ValueError:\n"
        "        if depth: raise\n",
    )
    ran = poprun(
        *job(3, every_mpirun),
        *("python", "train.py"),
        environ={"SLURMD_NODENAME": "localhost"},
    )

    lines = ran.stderr.splitlines()
    assert (ran.code, ran.stdout) == (1, "")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == [
        "ValueError: the loss is nan",
        "poprun: error: Instance 1 on localhost exited with code 1: "
        "ValueError: the loss is nan",
    ]
    assert ran.stderr.count("Traceback") == 1
    assert "POPRUN" not in ran.stderr
    assert ran.stderr.count("nstance") == 1


def test_a_deep_traceback_that_was_not_shown_is_cut_and_its_cause_is_told(
    poprun: Poprun,
) -> None:
    calls = "".join(f"def f{n}(): f{n + 1}()\n" for n in range(30))
    poprun.script(
        "train.py",
        f"import os\n{calls}def f30(): os.environ['RANK'] == '1' and 1 / 0\nf0()\n",
    )
    ran = poprun(
        *job(2),
        *("--only-output-from-instance", "0", "python", "train.py"),
        environ={"SLURMD_NODENAME": "localhost"},
    )

    lines = ran.stderr.splitlines()
    assert lines[0] == "poprun: the last lines of instance 1's stderr:"
    assert len(lines) == 22
    assert "Traceback" not in ran.stderr
    assert lines[-1] == (
        "poprun: error: Instance 1 on localhost exited with code 1: "
        "ZeroDivisionError: division by zero"
    )


def test_a_daemon_that_holds_the_output_open_does_not_delay_the_end(
    poprun: Poprun,
) -> None:
    ran = poprun(*job(1), "sh", "-c", "(env -i setsid sleep 600 &); echo done")

    assert (ran.code, ran.stdout) == (0, "done\n")
    assert ran.stderr == (
        "poprun: Instance 0 left 1 process running, which poprun ended.\n"
    )


@pytest.mark.mpi
def test_a_reader_that_has_seen_enough_ends_the_job(
    poprun: Poprun, every_mpirun: str
) -> None:
    process = poprun.start(*job(2, every_mpirun), "yes")
    assert process.stdout
    assert read(process.stdout.fileno(), 2) == b"y\n"
    process.stdout.close()

    assert process.wait(timeout=200) == 141
    assert process.stderr
    assert process.stderr.read() == b""


def test_a_reader_that_sleeps_when_the_job_ends_misses_nothing(poprun: Poprun) -> None:
    script = poprun.script(
        "fill.py",
        """
import os, select
os.set_blocking(1, False)
written, poll = 0, select.poll()
poll.register(1, select.POLLOUT)
# poprun itself may be slow to read.
while (ready := poll.poll(3000)) or written <= 1_000_000:
    written += os.write(1, b"x" * 4096) if ready else 0
open("written", "w").write(str(written))
""",
    )
    process = poprun.start(*job(1), "python", script)
    written = poprun.directory / "written"
    wait_for(lambda: written.exists() and bool(written.read_text()), "full pipes")
    time.sleep(1.5)  # longer than poprun waits for the last words of a dead program
    out, err = process.communicate(timeout=200)

    assert (process.returncode, err) == (0, b"")
    assert len(out) == int(written.read_text()) > 1_000_000


def is_pending(pid: int, number: int) -> bool:
    """Return whether a process has been sent a signal that it has not received."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = re.findall(r"(?:Sig|Shd)Pnd:\s*(\w+)", status)
    return any(int(mask, 16) & 1 << number - 1 for mask in masks)


def written_below(pid: int) -> int:
    """Return how many bytes the instances of a job have written, if they are `yes`."""
    written = 0
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name() == "yes":
                written += process.io_counters().write_chars
    return written


def test_a_reader_that_has_stopped_reading_does_not_keep_a_stopped_job(
    poprun: Poprun,
) -> None:
    read_end, write_end = os.pipe()
    process = poprun.start(*job(2), "--grace", "0.5", "yes", stdout=write_end)
    # More than the pipe and the terminals of both hold: the rest is poprun's to write.
    wait_for(lambda: written_below(process.pid) > 1 << 19, "a queue in poprun")
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=200)
    os.close(read_end)
    os.close(write_end)

    assert process.stderr
    lines = process.stderr.read().decode().splitlines()
    assert process.returncode == 143
    assert lines[0] == ("poprun: SIGTERM: stopping the instances; repeat to kill them.")
    assert re.fullmatch(
        r"poprun: error: Output was lost: stdout was not read, so at least the last "
        r"\d+ bytes were not written\.",
        lines[1],
    )
    assert lines[2:] == ["poprun: error: Stopped by SIGTERM."]


@pytest.mark.parametrize(
    ("options", "numbers", "code"),
    [
        pytest.param(("--timeout", "1"), (), 124, id="timeout"),
        pytest.param((), (signal.SIGHUP, signal.SIGHUP), 129, id="two-signals"),
    ],
)
def test_where_nothing_can_be_written_a_job_ends_all_the_same(
    poprun: Poprun, options: tuple[str, ...], numbers: tuple[int, ...], code: int
) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write_end, bytes(4096))
    os.set_blocking(write_end, True)
    process = poprun.start(*job(2), *options, "yes", stdout=write_end, stderr=write_end)
    if numbers:
        wait_for(lambda: written_below(process.pid) > 0, "the instances")
    for number in numbers:
        process.send_signal(number)
        # Or the kernel makes one of two.
        wait_for(lambda: not is_pending(process.pid, number), "the signal")  # noqa: B023
    process.wait(timeout=200)
    os.close(read_end)
    os.close(write_end)

    assert process.returncode == code


@pytest.mark.parametrize(
    ("name", "number", "program", "code", "said"),
    [
        (
            "stdout",
            1,
            "echo lost",
            74,
            "poprun: error: Output was lost: stdout cannot be written: No "
            "space left on device. The instances were not stopped because of that.\n",
        ),
        (
            "stdout",
            1,
            "echo lost; exit 3",
            3,
            "poprun: error: Output was lost: stdout cannot be written: No "
            "space left on device. The instances were not stopped because of that.\n"
            "poprun: error: Instance 0 on localhost exited with code 3.\n",
        ),
        ("stderr", 2, "echo lost >&2", 74, ""),
    ],
)
def test_a_full_disk_does_not_stop_the_instances_and_is_told(
    poprun: Poprun, name: str, number: int, program: str, code: int, said: str
) -> None:
    with open("/dev/full", "wb") as full:
        ran = poprun(
            *job(1),
            *("sh", "-c", f"{program}"),
            environ={"SLURMD_NODENAME": "localhost"},
            **{name: full},
        )

    assert (ran.code, ran.stderr) == (code, said)


@pytest.mark.parametrize(
    "options", [("--dry-run",), ("--print-topology=yes",)], ids=["dry-run", "topology"]
)
def test_what_was_asked_for_and_cannot_be_written_is_an_error(
    poprun: Poprun, options: tuple[str, ...]
) -> None:
    with open("/dev/full", "wb") as full:
        ran = poprun(*job(2), *options, "touch", "started", stdout=full)

    assert (ran.code, ran.stderr) == (
        74,
        "poprun: error: The standard output cannot be written: No space left on "
        "device.\n",
    )
    assert not (poprun.directory / "started").exists()


def test_what_was_asked_for_and_is_not_read_ends_quietly(poprun: Poprun) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ran = poprun(*job(2), "--dry-run", "true", stdout=write_end)
    os.close(write_end)

    assert (ran.code, ran.stderr) == (141, "")


@pytest.mark.parametrize(
    ("closed", "program", "code", "said"),
    [
        (
            ">&-",
            "echo lost",
            74,
            b"poprun: error: Output was lost: stdout cannot be written: Bad file "
            b"descriptor. The instances were not stopped because of that.\n",
        ),
        (">&-", "true", 0, b""),
        ("2>&-", "echo lost >&2", 0, b""),
        ("<&- >&- 2>&-", "echo lost", 74, b""),
    ],
)
def test_a_stream_that_the_caller_has_closed_is_not_taken_for_another(
    poprun: Poprun, closed: str, program: str, code: int, said: bytes
) -> None:
    ran = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", POPRUN, *job(2), "sh", "-c", program],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        timeout=200,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (code, b"", said)


def test_log_lines_that_cannot_be_written_stop_nothing(poprun: Poprun) -> None:
    with open("/dev/full", "wb") as full:
        ran = poprun(*job(2), "-v", "echo", "hello", stderr=full)

    assert (ran.code, ran.stdout) == (74, "hello\nhello\n")


def test_a_log_that_fills_its_disk_loses_only_itself(poprun: Poprun) -> None:
    (poprun.directory / "logs").mkdir()
    options = [*job(1), "--mpi-global-args", "--output-filename logs"]
    program = ["head", "-c", "3000000", "/dev/zero"]
    ran = subprocess.run(
        [
            *("unshare", "--map-root-user", "--mount", "sh", "-c"),
            'mount -t tmpfs -o size=1m none logs && "$@"; wc -c < logs/1/rank.0/stdout'
            " >&2; exit $?",
            *("sh", POPRUN, *options, *program),
        ],
        cwd=poprun.directory,
        env=poprun.environ,
        capture_output=True,
        timeout=200,
    )

    said = ran.stderr.decode().splitlines()
    assert said[0] == (
        "poprun: error: Output was lost: logs/1/rank.0/stdout cannot be "
        "written: No space left on device. The instances were not stopped because of "
        "that."
    )
    assert 500_000 < int(said[1]) <= 1 << 20
    assert ran.stdout == bytes(3_000_000)


def test_a_log_directory_that_cannot_be_made_is_refused_before_the_start(
    poprun: Poprun,
) -> None:
    (poprun.directory / "logs").write_text("a file")
    ran = poprun(
        *job(2),
        *("--mpi-global-args", "--output-filename logs", "touch", "started"),
    )

    assert (ran.code, ran.stderr) == (
        2,
        "poprun: error: --output-filename 'logs' cannot be written: logs/1: Not a "
        "directory. Name a directory where you can create files.\n",
    )
    assert not (poprun.directory / "started").exists()


def test_a_program_that_does_not_exist_leaves_no_log_directory(poprun: Poprun) -> None:
    ran = poprun(
        *job(2), "--mpi-global-args", "--output-filename logs", "./no-such-program"
    )

    assert ran.code == 127
    assert os.listdir(poprun.directory) == []


def test_a_log_that_is_removed_while_it_is_written_is_no_reason_to_stop(
    poprun: Poprun,
) -> None:
    script = poprun.script("say.py", WAIT + "print('one')\nwait('go')\nprint('two')")
    logs = poprun.directory / "logs"
    process = poprun.start(
        *job(1), "--mpi-global-args", "--output-filename logs", "python", script
    )
    log = logs / "1/rank.0/stdout"
    wait_for(lambda: log.exists() and bool(log.read_bytes()), "the log")
    subprocess.run(["rm", "-r", logs], check=True)
    Path(poprun.directory, "go").touch()

    assert process.communicate(timeout=200) == (b"one\ntwo\n", b"")
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_after_the_last_words_do_not_change_the_exit_code(
    poprun: Poprun, number: int
) -> None:
    codes = []
    for _ in range(3):
        process = poprun.start(*job(1), "sh", "-c", "exit 3")
        assert process.stderr
        line = process.stderr.readline()
        while process.poll() is None:
            process.send_signal(number)
        codes.append((line.startswith(b"poprun: error: Instance 0"), process.wait()))

    assert codes == [(True, 3)] * 3


def test_each_run_writes_to_a_folder_of_its_own(poprun: Poprun) -> None:
    for instances in (3, 1):
        ran = poprun(*job(instances), "--log-dir=logs", "sh", "-c", "echo $RANK")
        assert ran.code == 0

    logs = poprun.directory / "logs"
    latest = logs / "latest"
    runs = sorted(p.name for p in logs.iterdir() if not p.is_symlink())
    assert len(runs) == 2
    assert os.readlink(latest) in runs
    assert [p.name for p in (latest / "attempt-0").iterdir()] == ["rank.0"]
    assert (latest / "attempt-0/rank.0/stdout").read_text() == "0\n"
    [first] = (logs / run for run in runs if run != os.readlink(latest))
    assert (first / "attempt-0/rank.2/stdout").read_text() == "2\n"


@pytest.mark.parametrize(
    ("shown", "lines"),
    [("failed", ["1"]), ("0,failed", ["0", "1"]), ("1-2", ["1", "2"])],
)
def test_of_instances_that_are_not_shown_those_that_fail_may_be(
    poprun: Poprun, shown: str, lines: list[str]
) -> None:
    script = poprun.script(
        "fail.py",
        WAIT + "rank = os.environ['RANK']\n"
        "print(rank, flush=True)\n"
        "print(f'error of {rank}', file=sys.stderr)\n"
        "open(f'said-{rank}', 'w').close()\n"
        "for other in range(3): wait(f'said-{other}')\n"
        "if rank == '1': sys.exit(3)\n"
        "wait('never')\n",
    )
    ran = poprun(*job(3), f"--only-output-from-instance={shown}", "python", script)

    errors = [f"error of {rank}" for rank in lines]
    assert ran.code == 3
    assert sorted(ran.stdout.splitlines()) == lines
    *said, cause = ran.stderr.splitlines()
    assert sorted(line for line in said if line.startswith("error of")) == errors
    assert cause.startswith("poprun: error: Instance 1 on localhost exited with code 3")


def test_a_template_tags_lines_with_the_time_when_they_were_written(
    poprun: Poprun,
) -> None:
    script = poprun.script(
        "say.py", "import time\nfor _ in range(3): print(time.time(), flush=True)"
    )
    template = "{time} {stream} {local_instance}/{instance} {host} "
    ran = poprun(*job(2), f"--tag-format={template}", "python", script)
    now = time.time()

    rows = [line.split() for line in ran.stdout.splitlines()]
    assert sorted(row[1:4] for row in rows) == sorted(
        [["stdout", "0/0", "localhost"], ["stdout", "1/1", "localhost"]] * 3
    )
    for when, *_, written in rows:
        tagged = datetime.fromisoformat(when).timestamp()
        # To the millisecond below.
        assert float(written) - 0.001 < tagged <= now


def test_each_attempt_writes_to_a_folder_of_its_own(poprun: Poprun) -> None:
    ran = poprun(
        *job(2),
        *("--max-restarts=1", "--log-dir=logs"),
        *("sh", "-c", "echo $RANK in $POPDIST_RESTART_COUNT; exit $RANK"),
    )

    latest = poprun.directory / "logs/latest"
    assert ran.code == 1
    assert sorted(path.name for path in latest.iterdir()) == ["attempt-0", "attempt-1"]
    texts = [(latest / f"attempt-{n}/rank.1/stdout").read_text() for n in range(2)]
    assert texts == ["1 in 0\n", "1 in 1\n"]
