import numpy as np
import pytest

from popdist.engine._core import address_of
from popdist.engine.calls.array_rows import readable, written
from tests.popdist.engine.members import group_of


def odd(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array that begins between two elements."""
    memory = bytearray(1 + 8 * int(np.prod(shape)))
    return np.frombuffer(memory, np.float64, offset=1).reshape(shape)


def test_an_array_in_one_piece_is_taken_as_it_is() -> None:
    x = np.ones((3, 4))

    assert readable(x) is x
    assert address_of(x[1]) == address_of(x) + 32


@pytest.mark.parametrize(
    "x",
    [np.ones((4, 6))[:, ::2], np.ones((4, 6)).T, np.ones(5)[::-1], odd((2, 3))],
    ids=["strided", "transposed", "backwards", "odd address"],
)
def test_other_arrays_are_copied(x: np.ndarray) -> None:
    copy = readable(x)

    assert copy is not x
    assert copy.flags.c_contiguous
    assert copy.flags.aligned
    assert np.array_equal(copy, x)


def test_a_destination_that_cannot_be_written_is_refused() -> None:
    x = np.ones(3)
    assert written(x) is x
    x.flags.writeable = False

    with pytest.raises(ValueError, match="out is not a writable array"):
        written(x)
    for out in ([1.0], None):
        with pytest.raises(TypeError, match=f"out is {type(out).__name__}, but a res"):
            written(out)


@pytest.mark.parametrize(
    "call", ["all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather"]
)
def test_an_array_without_elements_may_lie_at_any_address(call: str) -> None:
    nothing = np.zeros(16, np.uint8)[1:9].view(np.uint64)[:0]
    assert nothing.ctypes.data % 8 == 1

    result = getattr(group_of("alone", 0, 1), call)(nothing)

    assert np.size(result) == 0
