"""The inputs of a reduction, and checks of its result."""

import ml_dtypes  # noqa: F401 (numpy's bfloat16)
import numpy as np
import pytest

from popdist.bench import inputs


@pytest.mark.parametrize("dtype", inputs.DTYPES)
@pytest.mark.parametrize("length", [1, 12, 6657, 1_000_003])
def test_the_sum_of_what_all_members_bring_is_recognised(
    dtype: str, length: int
) -> None:
    total = sum(inputs.source(length, dtype, rank).astype("f8") for rank in range(5))

    assert inputs.is_sum(np.asarray(total, "f8").astype(dtype), members=5)


@pytest.mark.parametrize("wrong_at", [0, 851_967, 851_968, 1_000_002])
def test_one_wrong_element_is_seen_wherever_it_is(wrong_at: int) -> None:
    total = inputs.source(1_000_003, "float32", 0) + inputs.source(
        1_000_003, "float32", 1
    )
    assert inputs.is_sum(total, members=2)

    total[wrong_at] += 1

    assert not inputs.is_sum(total, members=2)


def test_a_chunk_out_of_place_is_seen() -> None:
    total = 2 * inputs.source(4096, "float32", 0)
    total += 1 - 2 * (total == 24) * 6.5  # (i + 1) % 13 is 0 where i % 13 is 12
    assert inputs.is_sum(total, members=2)

    assert not inputs.is_sum(np.roll(total, 1024), members=2)


def test_members_bring_different_arrays_of_small_whole_numbers() -> None:
    assert inputs.source(4, "float16", 0).tolist() == [0, 1, 2, 3]
    assert inputs.source(4, "float16", 11).tolist() == [11, 12, 0, 1]


@pytest.mark.parametrize(
    ("length", "count"), [(1, 64), (256, 64), (257, 60), (4096, 4), (16384, 1)]
)
def test_rows_lie_on_lines_of_their_own_and_are_many_if_small(
    length: int, count: int
) -> None:
    rows = inputs.rows(length, "float32", inputs.rows_of_pass(length, "float32"))

    assert [len(row) for row in rows] == [length] * count
    assert {row.ctypes.data % 64 for row in rows} == {0}
    assert len({row.ctypes.data for row in rows}) == count
