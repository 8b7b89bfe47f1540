"""Draw the pictures in docs/images, from two jobs that run for that.

python scripts/make_pictures.py

It needs the extra `top`. Both pictures are SVG: the timeline in the page of `popctl
trace --html`, and the screen of `popctl top`.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from poprun.helpers import protocol
from poprun.popctl.jobs import JobConnection, connect, listening_names
from poprun.popctl.top_screen import TopScreen

IMAGES = Path(__file__).parent.parent / "docs" / "images"
BIN = Path(sys.executable).parent
# Instances run this Python by its short name.
ENVIRON = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}

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
    """Write both pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures = {"trace.svg": draw_trace(folder), "top.svg": draw_top(folder)}
    for file, picture in pictures.items():
        (IMAGES / file).write_text(picture, encoding="utf-8")


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
    # It names fonts of a server on the net. Browsers have one of equal widths.
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)


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
