"""The C functions that popdist declares itself, against TensorFlow's own headers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from popdist.tensorflow import tensors

HEADER = Path(tensors.__file__).parent / "kernels" / "tensorflow_api.h"
# ops.h is no C without the first types. TensorFlow has its own enumerations.
PROGRAM = """
typedef struct TF_DimensionHandle TF_DimensionHandle;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/kernels_experimental.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"
{callbacks}
{functions}
#define CHECK(type, name, parameters) type(*const checked_##name) parameters = name;
TF_FUNCTIONS(CHECK)
{values}
"""


def declarations(header: str) -> dict[str, str]:
    """Return the parts of a header, as they are checked."""
    macro = re.search(r"^#define TF_FUNCTIONS\(F\)(.*\\\n)+.*$", header, re.MULTILINE)
    assert macro is not None
    values = re.findall(r"(TF_[A-Z0-9_]+) = (\d+)", header)
    return {
        "callbacks": "\n".join(re.findall(r"^typedef void .*;$", header, re.MULTILINE)),
        "functions": macro[0],
        "values": "\n".join(
            f'_Static_assert({name} == {value}, "{name}");' for name, value in values
        ),
    }


def compile_checks(header: str, folder: Path) -> str:
    """Return what a compiler says about the declarations of a header."""
    source = folder / "checks.c"
    source.write_text(PROGRAM.format(**declarations(header)))
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    ran = subprocess.run(
        ["gcc", *options, "-isystem", tf.sysconfig.get_include(), str(source)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (ran.returncode == 0) == (ran.stderr == "")
    return ran.stderr


def test_the_declarations_are_those_of_tensorflows_headers(tmp_path: Path) -> None:
    header = HEADER.read_text()
    assert header.count("    F(") == 29

    assert compile_checks(header, tmp_path) == ""


@pytest.mark.parametrize(
    ("original", "other"),
    [
        ("TF_Dim, (const TF_Tensor *, int axis)", "TF_Dim, (const TF_Tensor *)"),
        ("F(size_t, TF_TensorByteSize", "F(int64_t, TF_TensorByteSize"),
        ("TF_GetInput, (TF_OpKernelContext *, int,", "TF_GetInput, (void *, int,"),
        ("F(TF_Code, TF_GetCode,", "F(int, TF_GetCode,"),
        ("TF_INTERNAL = 13", "TF_INTERNAL = 12"),
    ],
)
def test_a_declaration_that_differs_is_an_error(
    original: str, other: str, tmp_path: Path
) -> None:
    header = HEADER.read_text()
    assert original in header

    assert compile_checks(header.replace(original, other), tmp_path) != ""


def test_a_tensorflow_without_the_functions_is_an_error_at_each_import() -> None:
    program = """
import tensorflow
tensorflow.sysconfig.get_lib = lambda: "/missing"
for _ in range(2):
    try: from popdist.tensorflow import PopDistStrategy
    except ImportError as error: print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
    )

    assert ran.stdout == 2 * (
        f"TensorFlow {tf.__version__} does not take popdist's operations: "
        "/missing/libtensorflow_cc.so.2 is not there. Install tensorflow 2.21, with "
        "which popdist was tried.\n"
    )
