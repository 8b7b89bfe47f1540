"""A browser without a window, which reaches no network."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1280,900",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def browse(url: str, profile: Path, *options: str) -> str:
    """Return what the browser prints about a page, or skip where there is no browser.

    In CI its absence is a failure, as that of hosts is.
    """
    if not shutil.which("chromium"):
        required = os.environ.get("CI") or os.environ.get("REQUIRE_BEDS")
        (pytest.fail if required else pytest.skip)("not installed: chromium")
    command = [*BROWSER, f"--user-data-dir={profile}", *options, url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
