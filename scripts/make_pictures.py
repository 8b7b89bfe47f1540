"""Draw the pictures in docs/images, each from a job that runs for it.

python scripts/make_pictures.py

It needs the extra `top`. The pictures are SVG: a terminal with a job that succeeds and
one that fails, the timeline in the page of `popctl trace --html`, and the screen of
`popctl top`.
"""

import asyncio
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from poprun.popctl.jobs import JobConnection, connect, listening_names
from poprun.popctl.top_screen import TopScreen
from poprun.wire import protocol

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
BIN = Path(sys.executable).parent
# Instances run this Python by its short name.
ENVIRON = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}

RUN = (
    "poprun --num-instances 4 --num-replicas 8 --print-topology=yes "
    "python examples/train.py"
)
FAILURE = "poprun -n 4 python train.py"
# The file of instance 2 is missing.
FAILING = """\
import time

import popdist

index = popdist.getInstanceIndex()
print(f"loading part {index} of the data")
time.sleep(1)
data = open(f"part-{index}.csv").read()
time.sleep(600)
"""
# How many columns the terminal has.
COLUMNS = 92

# Instance 2 is late for each call, and the others wait for it.
STRAGGLER = """\
import time

import numpy as np
import popdist

group = popdist.instance_group()
gradient = np.ones(1 << 20, np.float32)
group.barrier()
for step in range(12):
    with popdist.trace("step"):
        time.sleep(0.15 if group.rank == 2 else 0.05)
    group.all_reduce(gradient, out=gradient)
"""
# It ends when it is stopped. Instance 3 is slower than the others.
TRAINING = """\
import time

import numpy as np
import popdist

group = popdist.instance_group()
gradient = np.ones(1 << 20, np.float32)
for step in range(10**6):
    time.sleep(0.006 if group.rank == 3 else 0.002)
    group.all_reduce(gradient, op="mean", out=gradient)
    if step % 50 == 0:
        print(f"step {step} loss {2.3 / (1 + step / 500):.4f}", flush=True)
"""
# How long the second job runs before it is looked at.
WARM_UP_S = 8
SCREEN = (96, 11)

# The height of what stands above the timeline.
HEAD = 40
LEGEND = (
    ("life", "instance running"),
    ("wait", "waiting for others"),
    ("move", "moving data"),
    ("span", "spans of the program"),
    ("phase", "phases of poprun"),
)


def main() -> None:
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(FAILING)
        for index in (0, 1, 3):
            (folder / f"part-{index}.csv").touch()
        pictures = {
            "run.svg": draw_terminal(RUN, ROOT),
            "failure.svg": draw_terminal(FAILURE, folder),
            "trace.svg": draw_trace(folder),
            "top.svg": draw_top(folder),
        }
    for file, picture in pictures.items():
        (IMAGES / file).write_text(picture, encoding="utf-8")


def draw_terminal(command: str, folder: Path) -> str:
    """Return a terminal with a command that was run in a folder."""
    shown = on_a_terminal(shlex.split(command), folder).replace(f"{folder}/", "")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(f"$ {command}\n{shown}"))
    return without_fonts(console.export_svg(title="poprun"))


def on_a_terminal(command: list[str], folder: Path) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, COLUMNS))
    with subprocess.Popen(
        command, cwd=folder, env=ENVIRON, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        written = b""
        try:
            while piece := os.read(ours, 1 << 16):
                written += piece
        except OSError:
            # Linux says so when no process has the terminal any more.
            os.close(ours)
    return written.decode().replace("\r\n", "\n")


def without_fonts(picture: str) -> str:
    """Return a picture without fonts of a server on the net: browsers have one."""
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)


def draw_trace(folder: Path) -> str:
    """Return the timeline of a job in which one instance is late."""
    (folder / "straggler.py").write_text(STRAGGLER)
    job = [*poprun("-n4", "--trace", "trace.json"), "straggler.py"]
    subprocess.run(job, cwd=folder, env=ENVIRON, check=True)
    page = subprocess.run(
        [str(BIN / "popctl"), "trace", "trace.json", "--html", "-"],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return alone(page)


def alone(page: str) -> str:
    """Return the picture in a page as a document, with its colours and a legend."""
    [style] = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    [(width, height, inner)] = re.findall(
        r'<svg id="timeline" viewBox="0 0 (\d+) (\d+)"[^>]*>(.*?)</svg>',
        page,
        re.DOTALL,
    )
    legend = "".join(
        f'<rect class="{name}" x="{10 + 235 * i}" y="12" width="12" height="12"/>'
        f'<text x="{28 + 235 * i}" y="22">{text}</text>'
        for i, (name, text) in enumerate(LEGEND)
    )
    total = HEAD + int(height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}">'
        f"<style>{style} svg {{ background: var(--back); }}</style>"
        f'<rect width="{width}" height="{total}" style="fill: var(--back)"/>'
        f'{legend}<g transform="translate(0 {HEAD})">{inner}</g></svg>\n'
    )


def draw_top(folder: Path) -> str:
    """Return the screen of popctl top on a job that runs."""
    (folder / "train.py").write_text(TRAINING)
    with subprocess.Popen(
        [*poprun("-n4", "--num-replicas=8"), "train.py"],
        cwd=folder,
        env=ENVIRON,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as job:
        try:
            time.sleep(WARM_UP_S)
            picture = asyncio.run(screenshot(connection_to(job.pid)))
        finally:
            job.terminate()
    return without_fonts(picture)


def connection_to(pid: int) -> JobConnection:
    """Return a connection to the job of a poprun."""
    for identity in listening_names():
        connection = connect(identity)
        if connection is not None and connection.pid == pid:
            return connection
    raise SystemExit(f"poprun, PID {pid}, runs no job. Has it failed?")


async def screenshot(connection: JobConnection) -> str:
    """Return what the screen shows after two looks."""
    connection.send(protocol.SHOW_JOB, 1000, 1)
    app = TopScreen(connection)
    async with app.run_test(size=SCREEN) as pilot:
        await pilot.pause(2.5)
        return app.export_screenshot(title="popctl top")


def poprun(*options: str) -> list[str]:
    """Return the beginning of a command line that runs a program in Python."""
    return [str(BIN / "poprun"), "--offline-mode=yes", *options, "python"]


if __name__ == "__main__":
    main()
