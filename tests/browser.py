"""A browser without a window, which reaches no network."""

import subprocess
from pathlib import Path

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
    """Return what the browser prints about a page."""
    command = [*BROWSER, f"--user-data-dir={profile}", *options, url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
