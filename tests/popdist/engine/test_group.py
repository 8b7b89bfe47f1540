import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from popdist.engine.group import Group
from popdist.engine.spec import reference
from popdist.engine.spec.dtypes import REDUCTIONS, code_of
from popdist.engine.tuning import Tuning
from popdist.errors import CollectiveAbortedError, GroupUnusableError
from tests.popdist.engine.members import LONG, SMALL, Me, Pool, group_of, results
from tests.popdist.engine.samples import BFLOAT16, DTYPES, Array, same, sample

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 13]
ALGORITHMS = ["oneshot", "direct", "ring"]

# (rows of each member,) with equal and with unequal numbers, also of neighbours.
ROWS = [(1, 1), (2, 2), (3, 3, 3), (1, 2), (3, 1, 2), (2, 3, 1, 3, 1), (1, 1, 3)]


def share_of(group: Group, dtype: Any) -> int:
    return group.transport.member.comm.ring_share(code_of(np.dtype(dtype)))


def expected(
    inputs: list[Array], op: str = "sum", algorithm: str = "direct", share: int = 1
) -> Array:
    """Return the row of all replicas, from inputs of any shape (L, ...)."""
    flat = [rows.reshape(len(rows), -1) for rows in inputs]
    row = reference.all_reduce(flat, op, algorithm=algorithm, share=share)
    return row.reshape(inputs[0].shape[1:])


def alone(replicas: tuple[int, ...] | None = None, **settings: Any) -> Group:
    return group_of("alone", 0, 1, replicas=replicas, tuning=SMALL, **settings)


@pytest.mark.parametrize("size", SIZES)
def test_every_algorithm_at_every_size_gives_the_references_bits(size: int) -> None:
    block = SMALL.fitted().block_bytes
    # In float16 that is widened three blocks and a bit, which no member shares equally.
    lengths = [0, 1, 7, 1000, 3 * block // 4 + 5]
    inputs = {
        (length, dtype): [
            sample([size, r, length], (1, length), dtype) for r in range(size)
        ]
        for length in lengths
        for dtype in ("float32", "float16", "int8")
    }

    def member(me: Me) -> list[Any]:
        group = me.join()
        found = [
            (
                length,
                dtype,
                how,
                share_of(group, dtype),
                group.all_reduce(x[me.rank][0], algorithm=how),
            )
            for (length, dtype), x in inputs.items()
            for how in ALGORITHMS
        ]
        group.close()
        return (
            found
            if me.rank in (0, size - 1)
            else [entry[4].tobytes() for entry in found]
        )

    first, *others = results(size, member)

    for length, dtype, how, share, found in first:
        row = expected(inputs[length, dtype], "sum", how, share)
        assert same(found, row), (length, dtype, how)
    for other in others:
        for entry, (*_, found) in zip(other, first, strict=True):
            assert (
                entry if isinstance(entry, bytes) else entry[4].tobytes()
            ) == found.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_reduced_by_every_operation_to_the_references_bits(
    dtype: np.dtype[Any],
) -> None:
    rows = (1, 2, 1)
    ops = [op for op in REDUCTIONS if dtype.kind != "b" or op != "mean"]
    inputs = [
        sample([r, dtype.num], (count, 517), dtype) for r, count in enumerate(rows)
    ]

    def member(me: Me) -> list[Any]:
        group = me.join(replicas=rows)
        return [
            (
                op,
                how,
                share_of(group, dtype),
                group.all_reduce(inputs[me.rank], op, algorithm=how),
            )
            for op in ops
            for how in ALGORITHMS
        ]

    for rank, told in enumerate(results(3, member)):
        for op, how, share, found in told:
            row = expected(inputs, op, how, share)
            assert same(found, np.stack([row] * rows[rank])), (op, how)


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_every_replica_has_a_row_of_its_own(rows: tuple[int, ...]) -> None:
    size = len(rows)
    # Two blocks of the largest number of nodes, and less than one line.
    lengths = [0, 1, 33, SMALL.fitted().block_bytes // 3 + 1]
    inputs = {
        n: [sample([r, n], (count, n), "float32") for r, count in enumerate(rows)]
        for n in lengths
    }

    def member(me: Me) -> list[Any]:
        group = me.join(replicas=rows)
        assert (len(group), group.num_local_replicas) == (sum(rows), rows[me.rank])
        return [
            (
                n,
                how,
                share_of(group, "float32"),
                group.all_reduce(x[me.rank], algorithm=how),
            )
            for n, x in inputs.items()
            for how in ALGORITHMS
        ]

    for rank, told in enumerate(results(size, member)):
        for n, how, share, found in told:
            row = expected(inputs[n], "sum", how, share)
            assert same(found, np.stack([row] * rows[rank])), (n, how)


def splits_of(replicas: int) -> list[tuple[int, ...]]:
    """Return every equal split, and some unequal ones."""
    equal = [
        (replicas // size,) * size
        for size in range(1, replicas + 1)
        if replicas % size == 0
    ]
    return [*equal, (1, replicas - 1), (replicas - 2, 2), (3, replicas - 4, 1)]


@pytest.mark.parametrize("replicas", [6, 8, 12])
def test_reproducible_bits_are_the_same_for_every_split(replicas: int) -> None:
    lengths = {"auto": 5000, "oneshot": 900, "direct": 30000}
    inputs = {
        dtype: sample(replicas, (replicas, 30000), dtype)
        for dtype in ("float32", BFLOAT16)
    }
    wanted = {
        (op, dtype): expected([x], op)
        for op in ("sum", "prod")
        for dtype, x in inputs.items()
    }
    for rows in splits_of(replicas):
        first = [sum(rows[:r]) for r in range(len(rows))]

        def member(me: Me, rows: Any = rows, first: Any = first) -> list[bool]:
            group = me.join(replicas=rows)
            mine = slice(first[me.rank], first[me.rank] + rows[me.rank])
            found = []
            for (op, dtype), row in wanted.items():
                for how, length in lengths.items():
                    x = inputs[dtype][mine, :length]
                    y = group.all_reduce(x, op, algorithm=how, reproducible=True)
                    found.append(same(y, np.stack([row[:length]] * rows[me.rank])))
            return found

        assert results(len(rows), member) == [[True] * 12] * len(rows), rows


def test_the_ring_cannot_be_reproducible() -> None:
    group = alone()

    message = refused(
        lambda: group.all_reduce(np.ones(3), algorithm="ring", reproducible=True)
    )

    assert message == (
        "The ring's order of additions depends on how replicas are spread over "
        "instances, so it cannot be reproducible. Use algorithm='auto', or leave out "
        "reproducible."
    )
    assert same(group.all_reduce(np.ones(3)), np.ones(3))
    group.close()


def test_the_group_tells_which_blocks_it_has_chosen_by_size() -> None:
    def member(me: Me) -> list[object]:
        group = me.join()
        # Once used, it may try others.
        return [group.blocks(nbytes) for nbytes in (512, 1 << 19, 1 << 26)]

    # Smaller arrays than the smallest blocks have one of the size to begin with.
    assert results(2, member) == [[(1 << 16, False)] * 3] * 2


def test_members_that_share_cores_begin_with_large_blocks_past_the_caches() -> None:
    tuning = Tuning(oneshot_bytes=2048, block_bytes=1 << 19, spin_us=0)

    def member(me: Me) -> list[object]:
        group = me.join(tuning=tuning)
        return [group.blocks(nbytes) for nbytes in (1 << 17, 1 << 18, 1 << 26)]

    assert (
        results(2, member) == [[(1 << 19, False), (1 << 19, True), (1 << 19, True)]] * 2
    )


def test_auto_goes_by_size_and_the_group_tells_what_ran() -> None:
    def member(me: Me) -> list[str]:
        group = me.join()
        ran = []
        for length in (512, 513):
            group.all_reduce(np.ones(length, np.float32))
            ran.append(group.last_algorithm)
        ring = me.join(algorithm="ring")
        ring.all_reduce(np.ones(4, np.float32))
        return [*ran, ring.last_algorithm]

    assert results(2, member) == [["oneshot", "direct", "ring"]] * 2


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", BFLOAT16, bool], ids=str
)
def test_one_member_with_one_row_gets_what_many_would(dtype: Any) -> None:
    x = sample(5, 1000, dtype)
    group = alone()

    for how in ALGORITHMS:
        assert same(group.all_reduce(x, algorithm=how), expected([x[None]])), how
    group.close()


def test_arrays_may_be_larger_than_the_arena() -> None:
    length = 3 << 20

    def member(me: Me) -> list[Any]:
        group = me.join()
        x = np.arange(length, dtype=np.float32) % 1000 + me.rank
        return [
            bool((group.all_reduce(x, algorithm=how) == 2 * (x - me.rank) + 1).all())
            for how in ALGORITHMS
        ]

    assert results(2, member) == [[True] * 3] * 2


def test_more_numbers_than_a_signed_32_bit_integer_counts_are_reduced() -> None:
    # 2 GiB and a little, in bytes. Only what is written to becomes memory.
    x = np.zeros((1 << 31) + 70, np.uint8)
    x[[1, -1]] = 2, 3
    group = group_of("alone", 0, 1)

    y = group.all_reduce(x, "max", out=x)

    assert (y[1], y[-1]) == (2, 3)
    assert np.count_nonzero(y) == 2
    group.close()


# --- Where arrays lie


def strange(kind: str, x: Array) -> Array:
    """Return an equal array that lies in memory in an unusual way."""
    match kind:
        case "every other":
            wide = np.zeros((*x.shape[:-1], x.shape[-1] * 2), x.dtype)
            wide[..., ::2] = x
            return wide[..., ::2]
        case "Fortran":
            return np.asfortranarray(x)
        case "backwards":
            return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        case "upside down":
            return np.ascontiguousarray(x[::-1])[::-1]
        case "odd address":
            held = b"?" + x.tobytes()
            return np.frombuffer(held, x.dtype, offset=1).reshape(x.shape)
        case "read-only":
            x.flags.writeable = False
            return x
        case "repeated":
            return np.broadcast_to(x[:1, :1], x.shape)
    raise AssertionError(kind)


KINDS = [
    "every other",
    "Fortran",
    "backwards",
    "upside down",
    "odd address",
    "read-only",
]
KINDS += ["repeated"]


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_may_lie_in_memory_as_they_like(kind: str) -> None:
    inputs = [strange(kind, sample(r, (2, 3, 50), "float32")) for r in range(2)]
    kept = [x.copy() for x in inputs]

    def member(me: Me) -> list[Any]:
        group = me.join(replicas=(2, 2))
        x = inputs[me.rank]
        found = [
            group.all_reduce(x),
            np.stack(group.all_reduce(list(x))),
            group.grouped_all_reduce([x])[0],
            group.all_reduce(x, async_op=True).wait(),
            group.broadcast(x, root=2),
            np.stack(group.all_gather(x)),
        ]
        assert same(x, kept[me.rank])
        return found

    row = expected(kept)
    for *reduced, sent, gathered in results(2, member):
        for found in reduced:
            assert same(found, np.stack([row] * 2))
        assert same(sent, np.stack([kept[1][0]] * 2))
        assert same(gathered, np.concatenate(kept))


@pytest.mark.parametrize("kind", ["every other", "Fortran", "backwards", "upside down"])
def test_results_may_lie_in_memory_as_they_like(kind: str) -> None:
    inputs = [sample(r, (2, 3, 50), "float64") for r in range(2)]

    def member(me: Me) -> list[Any]:
        group = me.join(replicas=(2, 2))
        x = inputs[me.rank]
        outs = [strange(kind, np.zeros_like(x)) for _ in range(3)]
        assert group.all_reduce(x, out=outs[0]) is outs[0]
        assert group.grouped_all_reduce([x], out=[outs[1]])[0] is outs[1]
        outs[2][...] = x
        group.all_reduce(outs[2], out=outs[2])
        return outs

    row = expected(inputs)
    for told in results(2, member):
        for found in told:
            assert same(np.ascontiguousarray(found), np.stack([row] * 2))


def test_a_result_at_an_odd_address_is_whole() -> None:
    def member(me: Me) -> Any:
        out = np.frombuffer(bytearray(1 + 40 * 8), np.float64, offset=1)
        me.join().all_reduce(np.arange(40.0), out=out)
        return out.copy()

    for found in results(2, member):
        assert same(found, 2 * np.arange(40.0))


@pytest.mark.parametrize("how", ALGORITHMS)
@pytest.mark.parametrize("length", [5, 50000])
def test_the_result_may_take_the_place_of_the_input(how: str, length: int) -> None:
    inputs = [sample(r, (2, length), "float32") for r in range(2)]

    def member(me: Me) -> Any:
        group = me.join(replicas=(2, 2))
        x = inputs[me.rank].copy()
        rows = list(inputs[me.rank].copy())
        assert group.all_reduce(x, out=x, algorithm=how) is x
        assert group.all_reduce(rows, out=rows, algorithm=how) is rows
        return share_of(group, "float32"), x, np.stack(rows)

    for share, x, rows in results(2, member):
        row = expected(inputs, "sum", how, share)
        assert same(x, np.stack([row] * 2))
        assert same(rows, np.stack([row] * 2))


@pytest.mark.parametrize("how", ALGORITHMS)
@pytest.mark.parametrize("shift", [-1001, -1, 1, 1001])
def test_the_result_may_overlap_the_input(how: str, shift: int) -> None:
    length = 40000
    inputs = [sample(r, length, "float32") for r in range(2)]

    def member(me: Me) -> Any:
        group = me.join()
        memory = np.zeros(length + 3000, np.float32)
        x, out = memory[1500:][:length], memory[1500 + shift :][:length]
        x[...] = inputs[me.rank]
        group.all_reduce(x, out=out, algorithm=how)
        return share_of(group, "float32"), out.copy()

    for share, found in results(2, member):
        assert same(found, expected([x[None] for x in inputs], "sum", how, share))


def test_rows_of_the_result_may_overlap_rows_of_the_input() -> None:
    inputs = [sample(r, (2, 30000), "int32") for r in range(2)]

    def member(me: Me) -> Any:
        group = me.join(replicas=(2, 2))
        crossed = inputs[me.rank].copy()
        group.all_reduce(crossed, out=crossed[::-1])
        rows = list(inputs[me.rank].copy())
        group.all_reduce(rows, out=[rows[1], rows[0]])
        return crossed, np.stack(rows)

    row = expected(inputs)
    for told in results(2, member):
        for found in told:
            assert same(found, np.stack([row] * 2))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4, 5)], ids=str)
def test_arrays_have_any_shape(shape: tuple[int, ...]) -> None:
    inputs = [sample(r, (1, *shape), "float32") for r in range(2)]

    def member(me: Me) -> Any:
        group = me.join()
        x = inputs[me.rank][0]
        return [
            group.all_reduce(x),
            *group.grouped_all_reduce([x]),
            group.all_reduce(x, async_op=True).wait(),
            group.view((1, 1)).all_reduce(x[None])[0],
        ]

    for told in results(2, member):
        for found in told:
            assert same(found, expected(inputs))


def test_numbers_and_lists_are_arrays_too() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        return group.all_reduce(me.rank + 1.5), group.all_reduce([1, 2 + me.rank])

    for number, numbers in results(2, member):
        assert same(number, np.float64(4.0))
        assert same(numbers, np.array([2, 5]))


# --- Any of these together


@pytest.fixture(scope="module")
def three_members() -> Iterator[Pool]:
    with Pool(3, replicas=(1, 2, 1)) as pool:
        yield pool


def reduce_as_told(group: Group, x: Array, told: dict[str, Any]) -> Any:
    """Reduce x as one member of the pool; return its rows and the ring's share."""
    x = strange(told["kind"], x)
    if told["arena"]:
        held = group.empty(x.shape, x.dtype)
        held[...] = x
        x = held
    out = None
    if told["in place"] and x.flags.writeable and told["kind"] != "repeated":
        out = x
    how = {"algorithm": told["algorithm"], "async_op": told["async"]}
    if told["list"]:
        y = group.all_reduce(
            list(x), told["op"], out=list(out) if out is x else None, **how
        )
    else:
        y = group.all_reduce(x, told["op"], out=out, **how)
    y = y.wait() if told["async"] else y
    return share_of(group, x.dtype), np.stack(list(y))


FLAGS = ("arena", "in place", "list", "async")
TOLD = st.fixed_dictionaries(
    {"kind": st.sampled_from(KINDS), **{flag: st.booleans() for flag in FLAGS}}
)


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
    | st.integers(0, 40_000).map(lambda n: (n,)),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(list(REDUCTIONS)),
    algorithm=st.sampled_from(["auto", *ALGORITHMS]),
    told=st.tuples(TOLD, TOLD, TOLD),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=200, deadline=None)
def test_any_array_of_any_member_is_reduced_to_the_references_bits(
    three_members: Pool,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    op: str,
    algorithm: str,
    told: tuple[dict[str, Any], ...],
    seed: int,
) -> None:
    assume(dtype.kind != "b" or op != "mean")
    inputs = [sample([seed, r], (r % 2 + 1, *shape), dtype) for r in range(3)]
    for x, how in zip(inputs, told, strict=True):
        if how["kind"] == "repeated" and x.size:
            x[...] = x[:1, :1]
    members = [
        (x, how | {"op": op, "algorithm": algorithm})
        for x, how in zip(inputs, told, strict=True)
    ]

    found = three_members.call(reduce_as_told, members)

    for rank, (share, rows) in enumerate(found):
        row = expected(inputs, op, algorithm.replace("auto", "direct"), share)
        assert same(rows, np.stack([row] * (rank % 2 + 1)))


# --- Many arrays at once


def test_grouped_arrays_are_reduced_as_each_by_itself() -> None:
    dtypes = ["float32", "int16", "float32", BFLOAT16, "float32", bool]
    lengths = [5, 0, 20000, 7, 1, 300]
    rows = (1, 2)
    inputs = [
        [
            sample([r, i], (count, n), d)
            for i, (d, n) in enumerate(zip(dtypes, lengths, strict=True))
        ]
        for r, count in enumerate(rows)
    ]

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        mine = inputs[me.rank]
        outs = [np.zeros_like(x) for x in mine]
        found = group.grouped_all_reduce(mine)
        group.grouped_all_reduce(mine, out=outs)
        later = group.grouped_all_reduce(mine, async_op=True)
        return found, outs, later.wait(), group.grouped_all_reduce([])

    for rank, (*told, nothing) in enumerate(results(2, member)):
        assert nothing == []
        for found in told:
            for i, one in enumerate(found):
                row = expected([x[i] for x in inputs])
                assert same(one, np.stack([row] * rows[rank])), i


def test_a_thousand_arrays_are_one_call() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        arrays = [np.full(i % 90, i + me.rank, np.int32) for i in range(1000)]
        found = group.grouped_all_reduce(arrays)
        return group.transport.member.comm.last()[1], found

    for calls, found in results(2, member):
        assert calls == 1
        for i, one in enumerate(found):
            assert same(one, np.full(i % 90, 2 * i + 1, np.int32))


# --- Arrays that live in the arena


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", BFLOAT16, bool], ids=str)
def test_arrays_in_the_arena_are_reduced_where_they_lie(size: int, dtype: Any) -> None:
    rows = tuple(1 + r % 3 for r in range(size))
    inputs = [sample([r, 1], (count, 9000), dtype) for r, count in enumerate(rows)]

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        x = group.empty((rows[me.rank], 9000), dtype)
        out = group.empty(x.shape, dtype)
        x[...] = inputs[me.rank]
        group.all_reduce(x, out=out, algorithm="direct")
        ran = [group.last_algorithm]
        group.all_reduce(x, out=x, algorithm="direct")
        ran.append(group.last_algorithm)
        return ran, out.copy(), x.copy()

    for rank, (ran, out, x) in enumerate(results(size, member)):
        row = np.stack([expected(inputs)] * rows[rank])
        assert ran == ["arena", "arena"]
        assert same(out, row)
        assert same(x, row)


@pytest.mark.parametrize("length", [10, 300, 60000])
def test_members_may_mix_arrays_in_the_arena_with_others(length: int) -> None:
    inputs = [sample(r, (1, length), "float32") for r in range(3)]

    def member(me: Me) -> Any:
        group = me.join()
        found = []
        # Which members have their input, and their result, in the arena.
        for places in itertools.product([False, True], repeat=3):
            x = group.empty(length) if places[me.rank] else np.empty(length, np.float32)
            for out_too in (False, True):
                x[...] = inputs[me.rank][0]
                out = group.empty(length) if out_too else None
                found.append(group.all_reduce(x, out=out).copy())
                group.all_reduce(x, out=x)
                found.append(x.copy())
        return found

    row = expected(inputs)
    for told in results(3, member):
        for found in told:
            assert same(found, row)


def test_the_arenas_arrays_come_and_go_and_outlive_the_group() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        for i in range(200):
            x = group.empty((3, 1000), np.int64)
            x[...] = i
            x = group.all_reduce(x[1:, ::2], out=x[1:, ::2])
            assert (x == 2 * i).all()
        kept = group.empty(())
        kept[...] = 7
        empty = group.empty((0, 4), bool)
        group.close()
        return kept.copy(), empty.copy()

    for kept, empty in results(2, member):
        assert same(kept, np.float32(7))
        assert same(empty, np.empty((0, 4), bool))


def test_once_the_group_has_ended_no_array_takes_memory_that_others_may_write() -> None:
    def member(me: Me) -> bool:
        group = me.join()
        x = group.empty(1 << 20)
        address = x.ctypes.data
        group.all_reduce(x, out=x)
        if me.rank == 0:
            group.abort("It is enough.")
        with pytest.raises(CollectiveAbortedError):
            group.all_reduce(x, out=x)
        del x
        return group.empty(1 << 20).ctypes.data != address

    assert results(2, member) == [True, True]


def test_memory_that_is_freed_as_the_group_ends_is_not_given_out_again() -> None:
    with alone() as group:
        arrays = [group.empty(1 << 20)]
        address = arrays[0].ctypes.data
        heap = group.transport.member._heap
        allocate = heap.allocate

        def allocate_at_the_end(nbytes: int) -> tuple[int, memoryview]:
            group.abort("It is enough.")
            arrays.clear()
            return allocate(nbytes)

        heap.allocate = allocate_at_the_end

        assert group.empty(1 << 20).ctypes.data != address


# --- What cannot be


def refused(call: Any, error: type[Exception] = ValueError) -> str:
    with pytest.raises(error) as refusal:
        call()
    return str(refusal.value)


def test_a_reduction_of_wrong_arrays_is_refused_before_the_others_know() -> None:
    group = alone((2,))
    x = np.ones((2, 3))

    assert refused(lambda: group.all_reduce(x, "median")) == (
        "The reduction is 'median', but must be sum, min, max, prod, mean."
    )
    assert refused(lambda: group.all_reduce(x, algorithm="tree")) == (
        "The algorithm is 'tree', but must be one of auto, oneshot, direct, ring."
    )
    assert refused(lambda: group.all_reduce(np.ones((3, 2)))) == (
        "3 rows are given, but this instance has 2 replicas in the group. Give "
        "popdist.rows(x), where x has a leading axis of 2, one row for each local "
        "replica, or a list of 2 arrays. popdist.instance_group() takes arrays as they "
        "are, without that axis."
    )
    assert refused(lambda: group.all_reduce([x[0], x[1, :2]])) == (
        "The rows are float64 of shape (3,) and float64 of shape (2,), but must be "
        "alike."
    )
    assert refused(lambda: group.all_reduce(x, out=np.ones((2, 4)))) == (
        "out has float64 of shape (4,), but the result has float64 of shape (3,). "
        "Give an array like the result, or no out."
    )
    assert refused(lambda: group.all_reduce(x, out=np.ones((2, 3), np.float32))) == (
        "out has float32 of shape (3,), but the result has float64 of shape (3,). "
        "Give an array like the result, or no out."
    )
    assert refused(lambda: group.grouped_all_reduce([x, x], out=[x])) == (
        "2 arrays are given, but 1 to write to. Give one for each."
    )
    assert refused(lambda: group.all_reduce(x, out=[[0.0] * 3] * 2), TypeError) == (
        "out is list, but a result is written to it. Give a numpy array."
    )
    assert refused(lambda: group.all_reduce(x > 0, "mean"), TypeError) == (
        "The mean of bool would not be a bool, so the engine makes none. Ask for sum, "
        "min, max or prod, or convert the array first."
    )
    for dtype in (complex, ">f4", "datetime64[s]", "U3"):
        with pytest.raises(TypeError, match="in this machine's byte order"):
            group.all_reduce(x.astype(dtype))
    assert same(group.all_reduce(x), 2 * x)
    group.close()


READ_ONLY = "out is not a writable array. Give a writable one, such as a copy of it."


def test_a_result_that_cannot_be_written_is_refused() -> None:
    group = alone()
    out = np.zeros(3)
    out.flags.writeable = False

    message = refused(lambda: group.all_reduce(np.ones(3), out=out))

    assert message == READ_ONLY
    assert not out.any()
    group.close()


def test_a_processor_without_a_simd_level_is_told() -> None:
    with pytest.raises(ValueError, match="simd is 'mmx', but must be one of baseline"):
        alone(simd="mmx")


def test_a_group_shows_who_and_how_many() -> None:
    group = alone((3,))

    assert repr(group) == "<Group: member 0 of 1, 3 replicas>"
    assert len(group) == group.num_replicas == 3
    group.close()
    assert repr(group) == "<Group: member 0 of 1, 3 replicas, closed>"


def test_views_of_a_group_are_one_group_of_calls() -> None:
    def member(me: Me) -> Any:
        flat = me.join()
        rows = flat.view((1, 2))
        found = []
        for _ in range(3):
            found.append(float(flat.all_reduce(1.0)))
            found.append(
                rows.all_reduce(np.ones((rows.num_local_replicas, 1))).tolist()
            )
        flat.close()
        rows.barrier()
        rows.close()
        with pytest.raises(GroupUnusableError):
            rows.barrier()
        return found

    assert results(2, member) == [[2.0, [[3.0]]] * 3, [2.0, [[3.0], [3.0]]] * 3]


def test_members_with_other_sizes_do_not_meet() -> None:
    def member(me: Me) -> str:
        block = (1 << 16) << me.rank
        tuning = Tuning(block_bytes=block)
        with pytest.raises(
            Exception, match=r"popdist arena, layout [0-9a-f]{16}, "
        ) as refusal:
            me.join(tuning=tuning, timeout=LONG)
        return type(refusal.value).__name__

    assert results(2, member) == ["MismatchError"] * 2


@pytest.mark.parametrize("spin_us", [0, 4])
@pytest.mark.parametrize("count", [131_072, 131_073, 262_207, 1_000_003])
def test_arrays_of_many_blocks_are_those_of_one_block(spin_us: int, count: int) -> None:
    """Blocks are smaller where the array is larger, and each member has a core."""
    tuning = Tuning(block_bytes=1 << 19, spin_us=spin_us)

    def member(me: Me) -> Any:
        flat = me.join(tuning=tuning)
        rows = flat.view((2, 1))
        numbers = np.arange(count) % 1013
        whole = flat.all_reduce((numbers + me.rank).astype(np.float32))
        part = flat.all_reduce((numbers[:700] + me.rank).astype(np.float32))
        given = np.stack([numbers + i for i in range(rows.num_local_replicas)])
        several = rows.all_reduce(given.astype(np.int32))
        expected = numbers * 3 + 1
        return (
            np.array_equal(whole, 2 * numbers + 1),
            np.array_equal(part, whole[:700]),
            all(np.array_equal(row, expected) for row in several),
        )

    assert results(2, member) == [(True, True, True)] * 2
