"""Calls on arrays that the core takes as they are."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from popdist import rows
from tests.popdist.engine.members import Me, group_of, results

X = np.arange(6, dtype=np.float32).reshape(3, 2)
SUM = 0


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"op": "max", "out": None, "algorithm": None},
        {"reproducible": True, "algorithm": "direct"},
        {"async_op": False, "name": None},
    ],
)
def test_the_core_makes_the_result_of_a_plain_array(keywords: dict[str, Any]) -> None:
    group = group_of("alone", 0, 1)
    x = rows(X)

    with patch.object(group, "_all_reduce", side_effect=AssertionError):
        result = group.all_reduce(x, **keywords)

    assert (type(result), result.dtype) == (np.ndarray, X.dtype)
    assert result.tolist() == X.tolist()
    assert not np.shares_memory(result, X)


@pytest.mark.parametrize("x", [X[:, 0], X.astype(complex), X.tolist()])
def test_other_arrays_are_left_to_python(x: Any) -> None:
    group = group_of("alone", 0, 1)

    with patch.object(group, "_all_reduce", return_value="left"):
        assert group.all_reduce(x) == "left"


def test_the_core_takes_plain_arrays() -> None:
    group = group_of("alone", 0, 1)
    part, whole = np.empty_like(X), np.empty((1, 3, 2), np.float32)

    assert group._scatter_array(X, part, SUM) is None
    assert group._gather_array(X, whole) is None

    assert part.tolist() == X.tolist()
    assert whole.tolist() == [X.tolist()]


def test_the_core_takes_plain_arrays_with_an_axis_of_replicas() -> None:
    group = group_of("alone", 0, 1, replicas=[3])
    part = np.empty((3, 1), np.float32)

    # Rows 0 1 2, 1 2 3 and 2 3 4: replica r gets element r of their sum.
    x = np.array([[0, 1, 2], [1, 2, 3], [2, 3, 4]], np.float32)
    assert group._scatter_array(x, part, SUM) is None

    assert part.tolist() == [[3.0], [6.0], [9.0]]


NOT_PLAIN = [
    pytest.param(np.asfortranarray(X), np.empty((3, 2), np.float32), id="x in pieces"),
    pytest.param(X, np.asfortranarray(X.copy()), id="out in pieces"),
    pytest.param(X, np.empty((2, 3), np.float32), id="another shape"),
    pytest.param(X, np.empty((3, 2), np.int32), id="another dtype"),
    pytest.param(X, np.empty((3, 2, 1), np.float32), id="more axes"),
    pytest.param(X[:0], np.empty((0, 2), np.float32), id="no elements"),
    pytest.param(X.astype(">f4"), np.empty((3, 2), ">f4"), id="another byte order"),
]


@pytest.mark.parametrize(("x", "out"), NOT_PLAIN)
def test_the_core_leaves_other_arrays_to_the_general_way(x: Any, out: Any) -> None:
    group = group_of("alone", 0, 1)

    assert group._scatter_array(x, out, SUM) is NotImplemented
    assert group._gather_array(x, out[np.newaxis]) is NotImplemented


def test_the_core_leaves_overlapping_arrays_to_the_general_way() -> None:
    group = group_of("alone", 0, 1)
    memory = np.zeros(12, np.float32)

    assert group._scatter_array(memory[:6], memory[3:9], SUM) is NotImplemented
    assert group._gather_array(memory[:6], memory[np.newaxis, 3:9]) is NotImplemented


def test_members_whose_arrays_are_in_pieces_call_with_those_whose_are_not() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.arange(6.0).reshape(3, 2) + me.rank
        if me.rank == 1:
            x = np.asfortranarray(x)
        into = np.empty((3, 3, 2))
        own = into[me.rank]
        own[...] = x
        return (
            group.reduce_scatter(x).tolist(),
            [array.tolist() for array in group.all_gather(x)],
            group.all_gather(own, out=into).tolist(),
        )

    x = np.arange(6.0).reshape(3, 2)
    gathered = [x.tolist(), (x + 1).tolist(), (x + 2).tolist()]
    assert results(3, member) == [
        ([[3.0, 6.0]], gathered, gathered),
        ([[9.0, 12.0]], gathered, gathered),
        ([[15.0, 18.0]], gathered, gathered),
    ]


def test_arrays_that_differ_are_gathered_all_the_same() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.full(me.rank + 1, me.rank, np.int16 if me.rank else np.int64)
        return [(a.dtype.name, a.tolist()) for a in group.all_gather(x)]

    found = [("int64", [0]), ("int16", [1, 1]), ("int16", [2, 2, 2])]
    assert results(3, member) == [found] * 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_small_arrays_are_gathered_with_their_headers_in_one_exchange(
    order: str,
) -> None:
    def member(me: Me) -> Any:
        group = me.join()
        comm, exchanges = group.transport.member.comm, []
        group.barrier()
        # A packet has room for 48 numbers of 64 bits.
        for length in (1, 24, 25):
            x = np.full((2, length), me.rank, np.int64, order=order)
            (before, _), *_ = comm.recent(me.rank)[1]
            found = group.all_gather(x, name="x" if length == 24 else None)
            assert [array.tolist() for array in found] == [
                [[rank] * length] * 2 for rank in range(2)
            ]
            (after, _), *_ = comm.recent(me.rank)[1]
            exchanges.append(after - before)
        return exchanges

    assert results(2, member) == [[1, 1, 2]] * 2


def test_results_that_are_larger_than_the_caches_are_gathered_to_any_address() -> None:
    length = (3 << 20) + 5

    def member(me: Me) -> bool:
        group = me.join()
        x = np.arange(length, dtype=np.uint8) + np.uint8(me.rank)
        into = np.zeros(2 * length + 1, np.uint8)[1:].reshape(2, length)
        group.all_gather(x, out=into)
        first = np.arange(length, dtype=np.uint8)
        return bool((into == np.stack([first, first + np.uint8(1)])).all())

    assert results(2, member) == [True, True]
