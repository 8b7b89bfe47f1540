"""Compiled operations that are older or newer than the Python files are refused."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from popdist.tensorflow import tensors

# The version of the operations, and the beginning of the hash of _kernels.pyi.
INTERFACE = (1, "5c012c1aed1bf9af")


@pytest.mark.parametrize("version", ["", "_kernels.VERSION = 0"])
def test_other_operations_are_refused_with_the_way_out(version: str) -> None:
    program = f"""
import sys, types
_kernels = types.ModuleType("popdist.tensorflow.tensors._kernels")
_kernels.__file__ = "/x/_kernels.abi3.so"
{version}
sys.modules["popdist.tensorflow.tensors._kernels"] = _kernels
import popdist.tensorflow
try:
    popdist.tensorflow.allreduce
except ImportError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        timeout=280,
        stdout=subprocess.PIPE,
        text=True,
    )

    assert ran.stdout == (
        "The compiled core of popdist, /x/_kernels.abi3.so, is of another version than "
        "its Python files. Compile it again, in poprun's source folder: "
        "pip install -e .\n"
    )


def test_the_version_goes_up_with_the_interface() -> None:
    text = Path(tensors.__file__).with_name("_kernels.pyi").read_bytes()

    # If this fails, and code that is written for the new interface needs new kernels:
    # raise the version in popdist/tensorflow/tensors/__init__.py and in
    # kernels/kernels.c. Write both here.
    assert (tensors.KERNELS_VERSION, hashlib.sha256(text).hexdigest()[:16]) == INTERFACE
