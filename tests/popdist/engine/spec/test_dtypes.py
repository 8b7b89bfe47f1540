import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from popdist.engine.spec import dtypes

# In the C core too.
CODES = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 3,
    "int8": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "uint8": 8,
    "uint16": 9,
    "uint32": 10,
    "uint64": 11,
    "bool": 12,
}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dtype_of(name: str) -> np.dtype:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_every_dtype_has_its_code(name: str, code: int) -> None:
    assert dtypes.code_of(dtype_of(name)) == code
    assert dtypes.name_of(code) == name


def test_there_are_no_other_dtypes() -> None:
    assert dtypes.DTYPES == CODES


@pytest.mark.parametrize(
    ("dtype", "code"),
    [("longlong", 7), ("ulonglong", 11), ("intp", 7), ("intc", 6), ("double", 1)],
)
def test_a_dtype_of_another_c_type_has_the_code_of_its_width(
    dtype: str, code: int
) -> None:
    assert dtypes.code_of(np.dtype(dtype)) == code


@pytest.mark.parametrize(
    ("dtype", "shown"),
    [
        (np.dtype("complex64"), "complex64"),
        (np.dtype("longdouble"), str(np.dtype("longdouble"))),
        (np.dtype("object"), "object"),
        (np.dtype("float32").newbyteorder(), ">f4"),
        (np.dtype("int8,float32"), "[('f0', 'i1'), ('f1', '<f4')]"),
        (np.dtype("V2"), "|V2"),
        (np.dtype("U3"), "<U3"),
        (np.dtype("S1"), "|S1"),
        (np.dtype("datetime64[s]"), "datetime64[s]"),
        (np.dtype("timedelta64[ns]"), "timedelta64[ns]"),
        (np.dtype(ml_dtypes.float8_e4m3), "float8_e4m3"),
        (np.dtype(ml_dtypes.int4), "int4"),
        (BFLOAT16.newbyteorder(), str(BFLOAT16.newbyteorder())),
    ],
    ids=str,
)
def test_other_dtypes_are_refused(dtype: np.dtype, shown: str) -> None:
    with pytest.raises(TypeError) as refusal:
        dtypes.code_of(dtype)

    assert str(refusal.value) == (
        f"The array's dtype is {shown}, but must be float32, float64, float16, "
        "bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool, in "
        "this machine's byte order. Convert it with astype first."
    )


def test_a_refused_dtype_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="dtype is complex128"):
            dtypes.code_of(np.dtype("complex128"))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_floats_of_half_the_width_accumulate_in_float32(name: str) -> None:
    assert dtypes.accumulation(dtype_of(name)) == np.dtype("float32")


@pytest.mark.parametrize("name", sorted(CODES.keys() - {"float16", "bfloat16"}))
def test_all_others_accumulate_in_their_own_type(name: str) -> None:
    assert dtypes.accumulation(np.dtype(name)) == np.dtype(name)


def test_an_unknown_dtype_accumulates_in_none() -> None:
    with pytest.raises(TypeError, match="dtype is complex64"):
        dtypes.accumulation(np.dtype("complex64"))


@pytest.mark.parametrize(
    ("name", "code"), [("sum", 0), ("min", 1), ("max", 2), ("prod", 3), ("mean", 4)]
)
def test_every_reduction_has_its_code(name: str, code: int) -> None:
    assert dtypes.reduction_code_of(name, dtypes.DTYPES["float32"]) == code
    assert dtypes.reduction_name_of(code) == name


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="reduction is 'average'") as refusal:
        dtypes.reduction_code_of("average", 0)

    assert str(refusal.value) == (
        "The reduction is 'average', but must be sum, min, max, prod, mean."
    )


def test_the_mean_of_bool_is_refused() -> None:
    with pytest.raises(TypeError) as refusal:
        dtypes.reduction_code_of("mean", dtypes.DTYPES["bool"])

    assert str(refusal.value) == (
        "The mean of bool would not be a bool, so the engine makes none. Ask for sum, "
        "min, max or prod, or convert the array first."
    )


def test_bfloat16_is_known_without_importing_a_package_for_it() -> None:
    program = (
        "import sys\n"
        "from popdist.engine.spec import dtypes\n"
        "assert 'ml_dtypes' not in sys.modules\n"
        "import ml_dtypes, numpy\n"
        "print(dtypes.code_of(numpy.dtype(ml_dtypes.bfloat16)))\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (ran.stdout, ran.stderr) == ("3\n", "")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("", "bfloat16\n"),
        ("sys.modules['ml_dtypes'] = None", "Install ml_dtypes for all instances.\n"),
    ],
)
def test_bfloat16_from_another_instance_needs_its_package_and_nothing_else(
    before: str, said: str
) -> None:
    program = f"""
import sys
from popdist.engine.spec import dtypes
{before}
try:
    print(dtypes.dtype_of(3))
except TypeError as error:
    print(error)
"""

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert ran.stdout.endswith(said)
    assert ran.stderr == ""
