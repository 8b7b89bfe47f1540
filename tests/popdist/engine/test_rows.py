"""Which rows overlap, and where calls write: the same for arrays of all frameworks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from popdist.engine.calls.array_rows import NUMPY
from popdist.engine.rows import (
    BYTES,
    Framework,
    Rows,
    copy_results,
    destination_of,
    pairs_of,
)
from popdist.torch.tensor_rows import TORCH
from tests.popdist.engine.samples import Array

Arrays = list[Array]

# A framework, and its array that shares memory with one of numpy.
Case = tuple[Framework[Any], Callable[[Array], Any]]


@pytest.fixture(params=["numpy", "torch"])
def case(request: pytest.FixtureRequest) -> Case:
    return (NUMPY, np.asarray) if request.param == "numpy" else (TORCH, torch.as_tensor)


def address_of(array: Array) -> int:
    return int(array.ctypes.data)


def copied(case: Case, sources: Arrays, targets: Arrays) -> list[int]:
    """Return which results go through scratch memory. Each array has one row."""
    framework, of = case
    given = [([of(x)], [of(y)]) for x, y in zip(sources, targets, strict=True)]
    _, copies = pairs_of(framework, given)
    return [
        i
        for i, (_, (result,)) in enumerate(given)
        if any(array is result for _, _, array in copies)
    ]


def rows_of(count: int) -> Arrays:
    return list(np.zeros((count, 8)))


def test_results_that_lie_apart_are_written_at_once(case: Case) -> None:
    a, b, c, d = rows_of(4)

    assert copied(case, [a, b], [c, d]) == []
    assert copied(case, [a, b], [a, b]) == []
    assert copied(case, [a, a], [c, d]) == []
    assert copied(case, [a, a[:0], b], [c, c[:0], b]) == []
    assert copied(case, [a[:4], a[4:]], [a[:4], a[4:]]) == []


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
    case: Case, sources: list[int], targets: list[int], expected: list[int]
) -> None:
    rows = rows_of(4)

    found = copied(case, [rows[i] for i in sources], [rows[i] for i in targets])

    assert found == expected


def test_parts_that_overlap_are_found_behind_longer_ones(case: Case) -> None:
    memory, out = np.zeros(100), np.zeros(100)

    assert copied(case, [memory, out[:5]], [out[:], memory[90:95]]) == [0, 1]
    assert copied(case, [memory[:90], out[:5]], [memory[:90], memory[95:]]) == []


def test_arrays_that_run_backwards_are_copied_before_anything_is_written() -> None:
    case = NUMPY, np.asarray
    memory, out = np.zeros(100), np.zeros(100)

    assert copied(case, [memory[::-1], out[:5]], [out[5:][:95:-1], memory[:5]]) == []
    assert copied(case, [memory[:5], out[2:4]], [memory[5:10], out[2:4][::-1]]) == [1]


def test_rows_that_lie_apart_are_written_in_place(case: Case) -> None:
    framework, of = case
    x, out = np.ones((2, 5)), np.zeros((2, 5))

    ((source, target),), copies = pairs_of(framework, [(list(of(x)), list(of(out)))])

    assert not copies
    assert (source.shape, target.shape) == ((5,), (5,))
    assert source.addresses == (address_of(x[0]), address_of(x[1]))
    assert target.addresses == (address_of(out[0]), address_of(out[1]))


def test_each_row_may_take_its_own_place(case: Case) -> None:
    framework, of = case
    x = list(of(np.ones((2, 5))))

    ((source, target),), copies = pairs_of(framework, [(x, x)])

    assert not copies
    assert source.addresses == target.addresses


@pytest.mark.parametrize(
    ("sources", "targets"),
    [
        ([0, 1], [1, 0]),
        ([0, 1], [2, 2]),
        ([0, 1], [0, 0]),
        ([0, 1], [1]),
    ],
    ids=["crossed", "twice the same", "the place of another", "one for all"],
)
def test_rows_that_would_overwrite_others_go_through_a_copy(
    case: Case, sources: list[int], targets: list[int]
) -> None:
    framework, of = case
    memory = np.zeros((3, 5))
    rows = of(memory)
    given = [rows[i] for i in sources], [rows[i] for i in targets]

    ((_, result),), copies = pairs_of(framework, [given])

    begin = address_of(memory)
    for address in result.addresses:
        assert not begin <= address < begin + memory.nbytes
    for scratch, _, _ in copies:
        scratch[...] = 1
    copy_results(framework, copies)
    for i in range(3):
        assert bool(memory[i].any()) == (i in targets)


def test_rows_in_pieces_are_written_once_the_call_is_over(case: Case) -> None:
    framework, of = case
    wide = np.zeros((5, 2))
    _, copies = pairs_of(framework, [([of(np.ones(5))], [of(wide[:, 0])])])

    ((scratch, _, _),) = copies
    scratch.view(of(wide).dtype)[...] = 3

    assert not wide.any()
    copy_results(framework, copies)
    assert wide.tolist() == [[3.0, 0.0]] * 5


def test_a_gathered_row_may_contain_the_members_own_part_already(
    case: Case,
) -> None:
    framework, of = case
    memory, elsewhere = np.zeros((3, 4)), np.zeros(4)
    rows = [of(row) for row in memory]
    second = Rows((address_of(memory[1]),), (32,), BYTES)
    apart = Rows((address_of(elsewhere),), (32,), BYTES)

    own, no_copies = destination_of(framework, rows, second, own_begin=32)
    another, copies = destination_of(framework, rows, second, own_begin=64)
    crossed, _ = destination_of(framework, rows[::-1], apart, own_begin=0)

    assert own.address == address_of(memory)
    assert not no_copies
    for row in (another, crossed):
        assert not 0 <= row.address - address_of(memory) < memory.nbytes
        assert row.nbytes == memory.nbytes
    assert [begin for _, begin, _ in copies] == [0, 32, 64]
