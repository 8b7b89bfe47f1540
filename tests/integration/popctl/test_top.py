"""popctl top with a real job: once, as JSON, and on terminals of three widths."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pexpect
import pyte
import pytest
from conftest import BIN, Poprun, wait_for

POPCTL = str(BIN / "popctl")
PROGRAM = """
import os, time
rank = os.environ["POPDIST_LOCAL_INSTANCE_INDEX"]
print("\\x1b[32mready, instance", rank, "\\x1b[0m", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.05)
"""


@pytest.fixture
def job(poprun: Poprun) -> Iterator[str]:
    """The id of a job of three instances that have written a line."""
    script = poprun.script("program.py", PROGRAM)
    process = poprun.start(
        *("--mpirun", "local", "-n", "3", "--num-replicas", "6", "python", script)
    )
    found: list[str] = []

    def has_written() -> bool:
        assert process.poll() is None
        listed = subprocess.run([POPCTL, "ps", "--json"], capture_output=True)
        own = [v["id"] for v in json.loads(listed.stdout) if v["pid"] == process.pid]
        if not own:
            return False
        found[:] = own
        shown = subprocess.run([POPCTL, "top", "--json", *own], capture_output=True)
        lines = [i["last_line"] for i in json.loads(shown.stdout)["instances"]]
        return lines == [f"ready, instance {rank}" for rank in range(3)]

    wait_for(has_written, "the lines of the instances")
    yield found[0]
    (poprun.directory / "stop").touch()
    process.communicate(timeout=200)
    assert process.returncode == 0


def test_once_is_one_table_without_a_terminal(job: str) -> None:
    written = subprocess.run(
        [POPCTL, "top", "--once", job[:10]], capture_output=True, text=True
    )

    assert (written.returncode, written.stderr) == (0, "")
    program, totals, blank, head, *rows = written.stdout.splitlines()
    assert program == f"Job {job[:8]}: python program.py"
    assert totals.startswith("running for ")
    assert totals.endswith(" MiB, 3 instances, 6 replicas, 6 IPUs")
    assert blank == ""
    assert head.split() == [
        "INSTANCE",
        "CPU",
        "MEMORY",
        "REPLICAS",
        "IPUS",
        "LAST",
        "LINE",
    ]
    assert [row.split()[-3:] for row in rows] == [
        ["ready,", "instance", str(rank)] for rank in range(3)
    ]


def test_without_a_terminal_it_names_what_needs_none(job: str) -> None:
    refused = subprocess.run([POPCTL, "top", job], capture_output=True, text=True)

    assert refused.returncode == 1
    assert refused.stderr == (
        "popctl: error: popctl top needs a terminal. --once prints one table, "
        "and --json one object, without one.\n"
    )


def test_without_textual_it_names_the_extra(job: str) -> None:
    code = (
        "import sys; sys.modules['textual'] = None; "
        "from poprun.popctl.entry_point import main; sys.exit(main(sys.argv[1:]))"
    )
    client = pexpect.spawn(sys.executable, ["-c", code, "top", job], timeout=200)
    client.expect(pexpect.EOF)
    client.wait()
    client.close()

    assert client.exitstatus == 1
    assert client.before.startswith(
        b"popctl: error: popctl top needs textual, which is not installed."
    )
    assert b"pip install '.[top]'" in client.before


def spawn_top(job: str, width: int, height: int = 12) -> "pexpect.spawn[bytes]":
    """Start popctl top on a terminal of its own."""
    # What the tests run on has other sizes, which would count for more.
    sizes = ("COLUMNS", "LINES")
    environ = {n: v for n, v in os.environ.items() if n not in sizes}
    return pexpect.spawn(
        POPCTL,
        ["top", "--interval", "0.5", job],
        dimensions=(height, width),
        env={**environ, "TERM": "xterm-256color"},
        timeout=200,
    )


# On the lowest one the table needs the line that is blank on others.
@pytest.mark.parametrize(
    ("width", "height", "head"), [(60, 7, 2), (60, 12, 3), (80, 24, 3), (200, 60, 3)]
)
def test_the_screen_shows_all_instances_and_leaves_the_terminal_as_it_was(
    job: str, width: int, height: int, head: int
) -> None:
    assert importlib.util.find_spec("textual"), "pip install poprun[test] installs it"
    screen = pyte.Screen(width, height)
    stream = pyte.ByteStream(screen)
    client = spawn_top(job, width, height)

    def shows(*texts: str) -> bool:
        with contextlib.suppress(pexpect.TIMEOUT):
            stream.feed(client.read_nonblocking(65536, timeout=0.2))
        return all(any(t in line for line in screen.display) for t in texts)

    # What is read at once may end in the middle of what is drawn.
    wait_for(lambda: shows("ready, instance 2", "q quits, arrows scroll"), "the table")
    lines = [line.rstrip() for line in screen.display]
    assert lines[0] == f"Job {job[:8]}: python program.py"
    assert lines[1].startswith("running for ")
    assert lines[head].startswith("INSTANCE  CPU")
    rows = lines[head + 1 : head + 4]
    assert [line.split()[0] for line in rows] == ["0", "1", "2"]
    assert rows[2].endswith("ready, instance 2")
    assert lines[height - 1] == "q quits, arrows scroll"

    client.send("q")
    client.expect(pexpect.EOF)
    client.wait()
    client.close()
    assert client.exitstatus == 0
    # The alternate screen is left, and the cursor is shown.
    assert client.before.rfind(b"\x1b[?1049l") > client.before.rfind(b"\x1b[?1049h")
    assert b"\x1b[?25h" in client.before


def test_the_screen_ends_with_the_job_and_says_how_it_ended(
    poprun: Poprun, job: str
) -> None:
    client = spawn_top(job, 80)
    client.expect("ready")
    (poprun.directory / "stop").touch()
    client.expect(f"Job {job[:8]} has ended with exit code 0")
    client.expect(pexpect.EOF)
    client.wait()
    client.close()

    assert client.exitstatus == 0
