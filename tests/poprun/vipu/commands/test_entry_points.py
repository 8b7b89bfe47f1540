"""The commands in shells: the pipelines of users' scripts, completion, streams."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from poprun import __version__

Environ = dict[str, str]
ENTRY = "import sys; from poprun.vipu.commands.entry_points import {0}; sys.exit({0}())"


@pytest.fixture
def shell(tmp_path: Path, environ: Environ) -> Environ:
    """An environment in which shells find the commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("vipu", "vipu-admin"):
        code = ENTRY.format(name.replace("-", "_"))
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
        file.chmod(0o700)
    root = str(Path(__file__).parents[4])
    path = f"{folder}:{os.environ['PATH']}"
    return {**environ, "PATH": path, "PYTHONPATH": root}


def sh(script: str, environ: Environ, code: int = 0) -> str:
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def test_the_pipelines_of_scripts_find_what_they_look_for(shell: Environ) -> None:
    sh(
        "vipu-admin create cluster c64 --preset pod64 && "
        "vipu create partition p16 --size 16 --reconfigurable && "
        "vipu create partition p64-b --size 32",
        shell,
    )

    first_active = (
        "vipu-admin list partitions | grep ACTIVE | cut -d '|' -f 3 | cut -d ' ' -f 2 "
        "| head -1"
    )
    names = "vipu list partition | grep ACTIVE | cut -d '|' -f 1 | tr -d ' '"
    size = "vipu list partitions | grep p64-b | cut -d '|' -f 6 | sed 's/ //g'"
    allocation = "vipu list allocations | tail -n +4 | head -n -1 | awk '{print $1}'"
    version = "vipu --server-version | sed -n 's/^version: //p'"
    ips = (
        "vipu get partition p16 --gcd 0 --ipu-configs | "
        'grep -o \'"ip": "[^"]*\' | sort -u | wc -l'
    )

    assert sh(first_active, shell) == "p16\n"
    assert sh(names, shell) == "p16\np64-b\n"
    assert sh(size, shell) == "32\n"
    assert sh(allocation, shell) == "c64\n"
    assert sh(version, shell) == f"{__version__}\n"
    assert sh(ips, shell).strip() == "4"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vipu re", ["remove", "reset"]),
        ("vipu list part", ["partitions"]),
        ("vipu get partition p", ["p1", "p2"]),
        ("vipu remove partition p1 p", ["p1", "p2"]),
        ("vipu create partition x --routing ring", ["ringswnc"]),
        ("vipu create partition x --cluster p", ["pod64"]),
    ],
)
def test_a_shell_completes_words_and_names(
    shell: Environ, line: str, expected: list[str]
) -> None:
    sh("vipu create partition p1 --size 4; vipu create partition p2 --size 4", shell)
    words = line.split()
    environ = {
        **shell,
        "_VIPU_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }

    found = sh("vipu", environ).splitlines()

    assert [entry.partition(",")[2] for entry in found] == expected


def test_completion_without_an_inventory_offers_nothing(shell: Environ) -> None:
    environ = {
        **shell,
        "POPRUN_VIPU_INVENTORY": "/dev/null/inventory.db",
        "_VIPU_COMPLETE": "bash_complete",
        "COMP_WORDS": "vipu get partition p",
        "COMP_CWORD": "3",
    }

    assert sh("vipu", environ) == "\n"


def test_a_reader_that_stops_early_is_no_error(shell: Environ) -> None:
    sh("vipu-admin create cluster c --preset pod1024", shell)
    script = "set -o pipefail; vipu list ipu-attrs | head -1 | wc -l"

    assert sh(script, shell, code=141).strip() == "1"


def test_output_that_cannot_be_written_is_an_error(shell: Environ) -> None:
    done = subprocess.run(
        ["bash", "-c", "vipu list partitions > /dev/full"],
        env=shell,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 74
    assert done.stderr == (
        "vipu: error: The output cannot be written: No space left on device.\n"
    )


def test_help_imports_nothing_that_only_an_inventory_needs(shell: Environ) -> None:
    script = (
        "import sys, json; from poprun.vipu.commands.entry_points import vipu; "
        "vipu(['--help']); print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=shell, capture_output=True, check=True
    )

    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    slow = {"ssl", "http.client", "msgspec", "numpy", "uvicorn", "yaml"}
    assert "click" in loaded
    assert loaded & slow == set()
