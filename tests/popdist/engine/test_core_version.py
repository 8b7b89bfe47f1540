"""A compiled core that is older or newer than the Python files is refused."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from popdist import engine

# The version of the core, and the beginning of the hash of _core.pyi.
INTERFACE = (6, "a5e7384b55117877")


@pytest.mark.parametrize("version", ["", "_core.VERSION = 0"])
def test_another_core_is_refused_with_the_way_out(version: str) -> None:
    program = f"""
import sys, types
_core = types.ModuleType("popdist.engine._core")
_core.__file__ = "/x/_core.abi3.so"
{version}
import popdist
sys.modules["popdist.engine._core"] = _core
try:
    import popdist.engine.group
except ImportError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        timeout=200,
        stdout=subprocess.PIPE,
        text=True,
    )

    assert ran.stdout == (
        "The compiled core of popdist, /x/_core.abi3.so, is of another version than "
        "its Python files. Compile it again, in poprun's source folder: "
        "pip install -e .\n"
    )


def test_the_version_goes_up_with_the_interface() -> None:
    text = Path(engine.__file__).with_name("_core.pyi").read_bytes()

    # If this fails, and code that is written for the new interface needs the new core:
    # raise the version in popdist/engine/__init__.py and in core/python/module.c.
    # Write both here.
    assert (engine.CORE_VERSION, hashlib.sha256(text).hexdigest()[:16]) == INTERFACE
