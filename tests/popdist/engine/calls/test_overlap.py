import numpy as np
import pytest

from popdist.engine.calls.overlap import prepare_all
from tests.popdist.engine.samples import Array

Arrays = list[Array]


def copied(sources: Arrays, targets: Arrays) -> list[int]:
    """Return which results go through a copy. Each array has one row."""
    given = [([x], [y]) for x, y in zip(sources, targets, strict=True)]
    return [i for i, one in enumerate(prepare_all(given)) if one.copies]


def rows_of(count: int) -> Arrays:
    return list(np.zeros((count, 8)))


def test_results_that_lie_apart_are_written_at_once() -> None:
    a, b, c, d = rows_of(4)

    assert copied([a, b], [c, d]) == []
    assert copied([a, b], [a, b]) == []
    assert copied([a, a], [c, d]) == []
    assert copied([a, a[:0], b], [c, c[:0], b]) == []
    assert copied([a[:4], a[4:]], [a[:4], a[4:]]) == []


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [
        ([0, 0], [0, 0], [0, 1]),
        ([0, 1], [1, 0], [0, 1]),
        ([0, 1], [2, 2], [0, 1]),
        ([0, 1], [2, 0], [1]),
        ([0, 1, 2], [0, 3, 3], [1, 2]),
        ([0, 0], [0, 1], [0]),
    ],
    ids=["tied", "crossed", "one place", "another's place", "some", "read twice"],
)
def test_results_over_what_another_array_has_go_through_a_copy(
    sources: list[int], targets: list[int], expected: list[int]
) -> None:
    rows = rows_of(4)

    found = copied([rows[i] for i in sources], [rows[i] for i in targets])

    assert found == expected


def test_parts_that_overlap_are_found_behind_longer_ones() -> None:
    memory, out = np.zeros(100), np.zeros(100)

    assert copied([memory, out[:5]], [out[:], memory[90:95]]) == [0, 1]
    assert copied([memory[:90], out[:5]], [memory[:90], memory[95:]]) == []
    assert copied([memory[::-1], out[:5]], [out[5:][:95:-1], memory[:5]]) == [1]
    assert copied([memory[:5], out[2:4]], [memory[5:10], out[2:4][::-1]]) == [1]
