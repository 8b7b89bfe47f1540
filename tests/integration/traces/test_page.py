"""The page of `popctl trace --html`, as a browser shows it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import BIN

from tests.poprun.trace.samples import document

# Chromium takes long to start on a busy machine.
pytestmark = pytest.mark.timeout(240)

BROWSER = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1280,900",
    # The page must need no network.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    trace, made = tmp_path / "trace.json", tmp_path / "page.html"
    trace.write_text(json.dumps(document()))
    popctl = os.path.join(BIN, "popctl")
    subprocess.run([popctl, "trace", str(trace), "--html", str(made)], check=True)
    return made


def browse(page: Path, *options: str) -> str:
    home = page.parent / "profile"
    command = [*BROWSER, f"--user-data-dir={home}", *options, page.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return ran.stdout


def test_a_browser_shows_the_rows_and_who_was_late(page: Path) -> None:
    shown = browse(page, "--dump-dom")

    assert "<h1>Trace of poprun: trace.json</h1>" in shown
    assert "100 % of that for instance 2, which began 5 of 5 calls last." in shown
    assert re.findall(r'data-row="(\d)"', shown) == ["0", "1", "2", "3"]
    # Those that wait are orange; the late one is not.
    rows = shown.split('<g class="row"')[1:]
    assert [row.count('class="wait"') for row in rows] == [0, 5, 5, 0]
    assert '<table id="slowest">' in shown


def test_a_browser_draws_the_waits(page: Path) -> None:
    picture = page.with_suffix(".png")

    browse(page, f"--screenshot={picture}", "--force-dark-mode=false")

    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1280, 900)
    # White alone would be a few hundred bytes.
    assert len(data) > 20_000
