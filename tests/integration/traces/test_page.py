"""The page of `popctl trace --html`, as a browser shows it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from browser import browse
from conftest import BIN

from tests.poprun.trace.samples import document

# Chromium takes long to start on a busy machine.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    trace, made = tmp_path / "trace.json", tmp_path / "page.html"
    trace.write_text(json.dumps(document()))
    popctl = os.path.join(BIN, "popctl")
    subprocess.run([popctl, "trace", str(trace), "--html", str(made)], check=True)
    return made


def look_at(page: Path, *options: str) -> str:
    return browse(page.as_uri(), page.parent / "profile", *options)


def test_a_browser_shows_the_rows_and_who_was_late(page: Path) -> None:
    shown = look_at(page, "--dump-dom")

    assert "<h1>Trace of poprun: trace.json</h1>" in shown
    assert (
        "100 % of that was for instance 2, which was the last to begin 5 of 5 calls."
        in shown
    )
    assert re.findall(r'data-row="(\d)"', shown) == ["0", "1", "2", "3"]
    # Those that wait are orange; the late one is not.
    rows = shown.split('<g class="row"')[1:]
    assert [row.count('class="wait"') for row in rows] == [0, 5, 5, 0]
    assert '<table id="slowest">' in shown


def test_a_browser_draws_the_waits(page: Path) -> None:
    picture = page.with_suffix(".png")

    look_at(page, f"--screenshot={picture}", "--force-dark-mode=false")

    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1280, 900)
    # White alone would be a few hundred bytes.
    assert len(data) > 20_000
