"""Virtual environments of tests, made without pip in a few milliseconds."""

import os
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class PythonEnvironment(NamedTuple):
    """A virtual environment: its Python and its site-packages."""

    python: str
    packages: Path


def make_environment(folder: Path, *, popdist: bool) -> PythonEnvironment:
    """Make one with popdist and all that is installed beside it, or with nothing."""
    executable = os.path.realpath(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    python.parent.mkdir()
    python.symlink_to(executable)
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(executable)}\n")
    if popdist:
        paths = f"{ROOT}\n{sysconfig.get_path('purelib')}\n"
        (packages / "ours.pth").write_text(paths)
    return PythonEnvironment(str(python), packages)
