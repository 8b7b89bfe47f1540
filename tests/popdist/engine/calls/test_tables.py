"""All-reduces of arrays that a table describes: shapes, and addresses of rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from popdist.engine.spec.dtypes import DTYPES, REDUCTIONS
from tests.popdist.engine.members import Me, group_of, results

FLOAT32, INT16 = DTYPES["float32"], DTYPES["int16"]
SUM, MEAN = REDUCTIONS["sum"], REDUCTIONS["mean"]
# Several blocks long, without axes, without elements.
SHAPES = [(3, 2), (), (0, 4), (70_001,)]


def table_of(arrays: Sequence[Sequence[Any]], targets: Sequence[Any]) -> bytes:
    numbers: list[int] = []
    for rows, target in zip(arrays, targets, strict=True):
        numbers += [target.ndim, *target.shape]
        numbers += [each.ctypes.data for each in (*rows, target)]
    return np.array(numbers, np.uint64).tobytes()


def rows_of(first: int, count: int, dtype: Any) -> list[list[Any]]:
    """Return the rows of replicas from `first` on, which have powers of two."""
    replicas = range(first, first + count)
    return [[np.full(shape, 2**r, dtype) for r in replicas] for shape in SHAPES]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("counts", [(2,), (1, 1), (2, 2), (1, 3, 2)])
def test_local_replicas_share_the_results(
    counts: tuple[int, ...], busy: bool, in_place: bool
) -> None:
    total = sum(counts)

    def member(me: Me) -> Any:
        with me.join(replicas=counts) as group:
            arrays = rows_of(sum(counts[: me.rank]), counts[me.rank], np.float32)
            targets = [
                rows[0] if in_place else np.zeros_like(rows[0]) for rows in arrays
            ]
            # Then the core leaves the table to the group.
            first = busy and group.all_reduce(
                [np.ones(1 << 20)] * counts[me.rank], async_op=True
            )
            group.all_reduce_table(table_of(arrays, targets), FLOAT32, SUM)
            if first:
                first.wait()
            kept = [[row.ravel()[:1].tolist() for row in rows[1:]] for rows in arrays]
            values = [np.unique(target).tolist() for target in targets]
            return [target.shape for target in targets], values, kept

    expected = [float(2**total - 1)]
    for rank, (shapes, values, kept) in enumerate(results(len(counts), member)):
        assert shapes == SHAPES
        assert values == [expected, expected, [], expected]
        first = sum(counts[:rank])
        own = [[float(2**r)] for r in range(first + 1, first + counts[rank])]
        assert kept == [own, own, [[] for _ in own], own]


def test_other_dtypes_and_means() -> None:
    group = group_of("alone", 0, 1, replicas=[3])
    rows = [np.array([n, -n], np.int16) for n in (1, 2, 5)]
    result = np.zeros(2, np.int16)

    group.all_reduce_table(table_of([rows], [result]), INT16, MEAN)

    # 8 / 3, truncated.
    assert result.tolist() == [2, -2]


def test_members_whose_arrays_differ_are_told() -> None:
    def member(me: Me) -> str:
        x = np.ones((2, 3) if me.rank else (3, 2), np.float32)
        with me.join() as group:
            try:
                group.all_reduce_table(table_of([[x]], [x]), FLOAT32, SUM)
            except Exception as error:
                return type(error).__name__
        return "nothing"

    assert results(2, member) == ["MismatchError"] * 2


@pytest.mark.parametrize("end", [-8, -16])
def test_a_table_that_ends_within_an_array_is_refused(end: int) -> None:
    group = group_of("alone", 0, 1)
    x = np.ones(3, np.float32)

    with pytest.raises(ValueError, match="The table of arrays ends within one"):
        group.all_reduce_table(table_of([[x]], [x])[:end], FLOAT32, SUM)


def test_an_empty_table_reduces_nothing() -> None:
    group = group_of("alone", 0, 1)
    group.all_reduce_table(b"", FLOAT32, SUM)
