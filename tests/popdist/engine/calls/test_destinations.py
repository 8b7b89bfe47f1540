"""Results in arrays of the caller's: every operation that takes `out`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popdist.engine.calls.array_rows import NUMPY
from popdist.engine.calls.destinations import check_apart
from popdist.engine.group import Group
from popdist.engine.rows import destination_of
from popdist.engine.spec.dtypes import code_of
from popdist.errors import CollectiveAbortedError
from tests.popdist.engine.members import (
    SMALL,
    Me,
    Pool,
    errors,
    group_of,
    results,
    run,
)
from tests.popdist.engine.samples import BFLOAT16, Array, same, sample

pytestmark = pytest.mark.usefixtures("each_transport")

ROWS = [(1,), (3,), (1, 1), (2, 2), (3, 1, 2)]

# What a result is written to, of that shape and dtype.
Kind = Callable[[Group, tuple[int, ...], Any], Array]


def ordinary(_: Group, shape: tuple[int, ...], dtype: Any) -> Array:
    return np.ones(shape, dtype)


def arena(group: Group, shape: tuple[int, ...], dtype: Any) -> Array:
    return group.empty(shape, dtype)


def in_pieces(_: Group, shape: tuple[int, ...], dtype: Any) -> Array:
    return np.ones((*shape, 2), dtype)[..., 1]


def unaligned(_: Group, shape: tuple[int, ...], dtype: Any) -> Array:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ones(nbytes + 1, np.uint8)[1:].view(dtype).reshape(shape)


KINDS = [ordinary, arena, in_pieces, unaligned]


def listed(x: Array) -> list[Array]:
    return [x[i, ...] for i in range(len(x))]


def agree(group: Group, call: Callable[..., Any], out: Any) -> list[bool]:
    """Return whether a call writes to `out` what it returns without it."""
    expected, told = call(), []
    for async_op in (False, True):
        found = call(out=out, async_op=async_op)
        found = found.wait() if async_op else found
        if expected is None:
            told.append(found is None)
            continue
        told += [found is out, *map(same, found, expected)]
        for array in out:
            array[...] = 0
    return told


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_every_result_can_be_written_to_an_array_or_a_list(
    rows: tuple[int, ...], kind: Kind
) -> None:
    replicas, n = sum(rows), SMALL.fitted().block_bytes // 2 + 3

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        local = rows[me.rank]
        x = sample(me.rank, (local, replicas, n), "float32")
        last = replicas - 1
        block = sample(7, (replicas, n), "int16")
        given = block if me.rank == len(rows) - 1 else None
        calls: list[tuple[Callable[..., Any], tuple[int, ...], Any]] = [
            (lambda **o: group.all_reduce(x, **o), x.shape, "float32"),
            (lambda **o: group.broadcast(x, last, **o), x.shape, "float32"),
            (lambda **o: group.all_to_all(x, **o), x.shape, "float32"),
            (lambda **o: group.reduce_scatter(x, **o), (local, 1, n), "float32"),
            (lambda **o: group.scatter(given, last, **o), (local, n), "int16"),
            (lambda **o: group.all_gather(x[:, 0], **o), (replicas, n), "float32"),
            (lambda **o: group.gather(x[:, 0], last, **o), (replicas, n), "float32"),
        ]
        told = []
        for call, shape, dtype in calls:
            out = kind(group, shape, dtype)
            told += [*agree(group, call, out), *agree(group, call, listed(out))]
        total = kind(group, x.shape[1:], "float32")
        return [
            *told,
            *agree(group, lambda **o: group.reduce(x, "max", last, **o), total),
        ]

    for told in results(len(rows), member):
        assert all(told), told


def test_a_flat_group_writes_results_without_an_axis_for_replicas() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.arange(4, dtype=np.float32) + me.rank
        part, whole, line = np.empty(2, np.float32), np.empty_like(x), np.zeros((2, 4))
        line = line.astype(np.float32)
        return [
            group.reduce_scatter(x, out=part) is part,
            part.tolist() == [[1.0, 3.0], [5.0, 7.0]][me.rank],
            group.all_to_all(x.reshape(2, 2), out=whole.reshape(2, 2)).tolist()
            == [[2.0 * me.rank + one, 2.0 * me.rank + one + 1] for one in (0, 1)],
            group.scatter(None if me.rank else x.reshape(2, 2), out=part) is part,
            part.tolist() == [[0.0, 1.0], [2.0, 3.0]][me.rank],
            group.all_gather(x, out=line) is line,
            line.tolist() == [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]],
        ]

    for told in results(2, member):
        assert all(told), told


def test_members_that_are_not_the_root_keep_what_they_give_as_out() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.ones(3, np.float32)
        total, lines = np.full(3, 7, np.float32), np.full((2, 3), 7, np.float32)
        group.reduce(x, root=1, out=total)
        group.gather(x, root=1, out=lines)
        return total.tolist(), lines.tolist()

    assert results(2, member) == [
        ([7.0] * 3, [[7.0] * 3] * 2),
        ([2.0] * 3, [[1.0] * 3] * 2),
    ]


def test_a_member_without_out_and_one_with_it_make_the_same_call() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.full(2, me.rank, np.float32)
        line = np.empty((2, 2), np.float32)
        out = line if me.rank else None
        return np.array(group.all_gather(x, out=out)).tolist()

    assert results(2, member) == [[[0.0, 0.0], [1.0, 1.0]]] * 2


def test_arrays_of_several_shapes_are_gathered_in_a_list() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.arange(me.rank + 1.0)
        y = np.arange(3, dtype=["int8", BFLOAT16, "float64"][me.rank])
        out = [np.empty(n + 1) for n in range(3)]
        like = [np.empty(3, dtype) for dtype in ("int8", BFLOAT16, "float64")]
        found, others = group.all_gather(x, out=out), group.all_gather(y, out=like)
        return (
            found is out and others is like,
            [one.tolist() for one in out],
            [one.tolist() for one in like],
        )

    told = (True, [[0.0], [0.0, 1.0], [0.0, 1.0, 2.0]], [[0, 1, 2]] * 3)
    assert results(3, member) == [told] * 3


@pytest.mark.parametrize("rows", [(1, 1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("kind", [ordinary, arena])
def test_a_result_may_be_written_over_what_the_call_reads(
    rows: tuple[int, ...], kind: Kind
) -> None:
    replicas, n = 3, SMALL.block_bytes // 2 + 3

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        local, first = rows[me.rank], sum(rows[: me.rank])
        x = kind(group, (local, replicas, n), np.float32)
        told = []

        def compare(call: Callable[[Any], Any], out: Any) -> None:
            x[...] = sample(me.rank, x.shape, np.float32)
            expected = call(None)
            expected = None if expected is None else np.array(expected)
            x[...] = sample(me.rank, x.shape, np.float32)
            found = call(out)
            told.append(expected is None or same(out, expected))
            told.append(found is (None if expected is None else out))

        compare(lambda out: group.reduce(x, "max", 0, out=out), x[0])
        compare(lambda out: group.reduce(x, "max", 2, out=out), x[local - 1])
        compare(lambda out: group.all_to_all(x, out=out), x)
        compare(lambda out: group.reduce_scatter(x, out=out), x[:, 1:2])
        compare(lambda out: group.reduce_scatter(x, out=out), x[:, :1])
        given = x[0] if me.rank == 0 else None
        compare(lambda out: group.scatter(given, out=out), x[0, first : first + local])
        compare(lambda out: group.scatter(given, out=out), x[0, 3 - local :])
        compare(lambda out: group.broadcast(x, 1, out=out), x[::-1])
        whole = kind(group, (replicas, n), np.float32)
        for begin in (first, 0, replicas - local):
            mine = whole[begin : begin + local]
            whole[...] = sample(me.rank, whole.shape, np.float32)
            expected = np.stack(group.all_gather(mine))
            group.all_gather(mine, out=whole)
            told.append(same(whole, expected))
        return told

    for told in results(len(rows), member):
        assert all(told), told


def test_a_broadcast_fills_rows_that_overlap_by_half() -> None:
    group = group_of("alone", 0, 1, replicas=(2,), tuning=SMALL)
    line = np.arange(6.0)

    group.broadcast(line[:4].reshape(2, 2), 0, out=line[1:5].reshape(2, 2))

    assert line.tolist() == [0.0, 0.0, 1.0, 0.0, 1.0, 5.0]
    group.close()


ALIKE = "Give an array like the result, or no out."
X = np.ones((2, 2, 3))
READ_ONLY = np.ones((2, 3))
READ_ONLY.flags.writeable = False
HELD = np.ones((3, 3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(
            lambda group: group.reduce(X, out=np.ones((3, 2))),
            ValueError,
            "out has float64 of shape (3, 2), but the result has float64 of shape "
            f"(2, 3). {ALIKE}",
            id="reduce-shape",
        ),
        pytest.param(
            lambda group: group.reduce(X, out=READ_ONLY),
            ValueError,
            "out is not a writable array. Give a writable one, such as a copy of it.",
            id="reduce-read-only",
        ),
        pytest.param(
            lambda group: group.reduce_scatter(X, out=np.ones((2, 1, 3), np.int8)),
            ValueError,
            "out has int8 of shape (1, 3), but the result has float64 of shape (1, 3). "
            f"{ALIKE}",
            id="reduce_scatter-dtype",
        ),
        pytest.param(
            lambda group: group.reduce_scatter(X, out=[HELD[:1], HELD[:1]]),
            ValueError,
            "Arrays 0 and 1 of out share memory, but each of them gets a different "
            "result. Give arrays that do not overlap.",
            id="reduce_scatter-overlap",
        ),
        pytest.param(
            lambda group: group.all_to_all(X, out=[HELD[1:], HELD[:2]]),
            ValueError,
            "Arrays 0 and 1 of out share memory, but each of them gets a different "
            "result. Give arrays that do not overlap.",
            id="all_to_all-overlap",
        ),
        pytest.param(
            lambda group: group.all_gather(X, out=[HELD]),
            ValueError,
            "out has 1 entries, but the result has 2: one for each replica of the "
            "group. Give a list of 2 arrays, or an array with a leading axis of 2.",
            id="all_gather-count",
        ),
        pytest.param(
            lambda group: group.all_gather(X, out=np.ones((2, 3, 3))),
            ValueError,
            "out has float64 of shape (3, 3), but the result has float64 of shape "
            f"(2, 3). {ALIKE}",
            id="all_gather-shape",
        ),
        pytest.param(
            lambda group: group.gather(X, out=[HELD[:2], 5]),
            TypeError,
            "out is int, but a result is written to it. Give a numpy array.",
            id="gather-type",
        ),
        pytest.param(
            lambda group: group.scatter(X, out=np.ones((2, 3))),
            ValueError,
            "out has float64 of shape (3,), but the result has float64 of shape "
            f"(2, 3). {ALIKE}",
            id="scatter-shape",
        ),
        pytest.param(
            lambda group: group.scatter(X, out=[HELD[:2], HELD[1:]]),
            ValueError,
            "Arrays 0 and 1 of out share memory, but each of them gets a different "
            "result. Give arrays that do not overlap.",
            id="scatter-overlap",
        ),
    ],
)
def test_an_array_that_cannot_take_the_result_is_refused_before_anything_is_sent(
    call: Callable[[Group], Any], error: type[Exception], message: str
) -> None:
    group = group_of("alone", 0, 1, replicas=(2,), tuning=SMALL)

    with pytest.raises(error) as refusal:
        call(group)

    assert str(refusal.value) == message
    group.barrier()
    group.close()


@pytest.mark.parametrize("length", [2, 200])
def test_an_array_that_does_not_fit_another_members_ends_the_group(
    length: int,
) -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x = np.ones(length + me.rank)
        group.all_gather(x, out=[np.ones(length), np.ones(length + me.rank)])
        # Small arrays travel with their headers: the member that they fit has them.
        group.barrier()

    rule = (
        f"out has float64 of shape ({length},), but the result has float64 of shape "
        f"({length + 1},). {ALIKE}"
    )
    found = errors(run(2, member))
    assert found[0] == (ValueError, rule)
    assert found[1] == (
        CollectiveAbortedError,
        f"Instance 0 failed in all_gather, which ended it for all: ValueError: {rule}",
    )


# --- What a transport writes to


def test_arrays_that_lie_side_by_side_are_written_where_they_lie() -> None:
    whole = np.zeros((3, 4))

    for arrays in ([whole], listed(whole), [whole[0], whole[0, :0], whole[1:]]):
        rows, copies = destination_of(NUMPY, arrays, dtype=code_of(whole.dtype))
        assert not copies
        assert rows.addresses == (whole.ctypes.data,)
        assert rows.shape == (12,)


@pytest.mark.parametrize(
    "arrays",
    [
        listed(np.zeros((3, 4)))[::-1],
        listed(np.zeros((3, 4)))[::2],
        [np.zeros((3, 4))[:, 1]],
    ],
)
def test_arrays_in_pieces_are_written_through_scratch_memory(
    arrays: list[Array],
) -> None:
    rows, copies = destination_of(NUMPY, arrays, dtype=code_of(arrays[0].dtype))

    assert not any(rows.addresses[0] == array.ctypes.data for array in arrays)
    assert rows.shape == (sum(array.size for array in arrays),)
    assert len(copies) == len(arrays)


def test_columns_between_each_other_do_not_overlap() -> None:
    whole = np.zeros((3, 4))

    check_apart([whole[:, 0], whole[:, 1], whole[:, 2:], whole[:0]])
    with pytest.raises(ValueError, match="Arrays 0 and 2 of out share memory"):
        check_apart([whole[:, 0], whole[:, 1], whole[2]])


# --- At random


def random_calls(group: Group, seed: int, count: int) -> list[str]:
    """Make random calls with and without out, and return those that differ."""
    # The same on all members.
    dice = np.random.default_rng(seed)
    local, total = group.num_local_replicas, group.num_replicas
    wrong = []
    for _ in range(count):
        name = dice.choice(
            [
                "reduce",
                "reduce_scatter",
                "all_gather",
                "gather",
                "scatter",
                "all_to_all",
            ]
        )
        n, root = int(dice.choice([0, 1, 5, 700])), int(dice.integers(total))
        dtype = dice.choice(["float32", "float16", "int8", "uint64"])
        kind = KINDS[dice.integers(4)]
        own = [int(dice.integers(1 << 30)), group.rank]
        x = sample(own, (local, total, n), dtype)
        rooted = (root,) if name in ("gather", "scatter") else ()
        first = sum(group.replicas[: group.rank])
        here = first <= root < first + local
        shape: tuple[int, ...] = x.shape
        given: Any = x
        if name == "reduce":
            rooted, shape = (dice.choice(["max", "sum"]), root), (total, n)
        elif name == "reduce_scatter":
            shape = (local, 1, n)
        elif name in ("all_gather", "gather"):
            shape = (total, total, n)
        elif name == "scatter":
            given, shape = (x[0] if here else None), (local, n)
        call = getattr(group, name)
        expected = call(given, *rooted)
        out: Any = kind(group, shape, dtype)
        if name != "reduce" and dice.random() < 0.5:
            out = listed(out)
        if dice.random() < 0.5:
            found = call(given, *rooted, out=out, async_op=True).wait()
        else:
            found = call(given, *rooted, out=out)
        if expected is None:
            right = found is None
        else:
            right = found is out and all(map(same, out, expected))
        if not right:
            wrong.append(f"{name} of {n} {dtype} to {kind.__name__}")
    return wrong


@pytest.fixture(scope="module")
def pool() -> Any:
    with Pool(3, replicas=(2, 1, 2), tuning=SMALL) as members:
        yield members


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_random_calls_write_to_out_what_they_return_without_it(
    pool: Pool, seed: int
) -> None:
    assert pool.call(random_calls, [(seed, 8)] * 3) == [[]] * 3
