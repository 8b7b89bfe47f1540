"""Run a script in a process that is a subreaper, as poprun and its helpers are."""

import subprocess
import sys

BECOME_SUBREAPER = """
import os, signal, time
from poprun.helpers import own_process, processes
own_process.become_subreaper()
"""


def run_as_subreaper(script: str) -> str:
    """Return what a script prints; what it changes of its process ends with it."""
    return subprocess.run(
        [sys.executable, "-c", BECOME_SUBREAPER + script],
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    ).stdout
