import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from popdist.engine import _core
from popdist.engine.call_table import EngineCall
from popdist.engine.calls.array_rows import rows_of
from popdist.engine.group import Group
from popdist.engine.rows import Rows
from popdist.engine.spec.dtypes import DTYPES
from popdist.engine.spec.operations import RING, Operation
from popdist.errors import MismatchError
from tests.popdist.engine.members import SMALL, Me, group_of, results, run
from tests.popdist.engine.samples import Array, same
from tests.popdist.other_transports import description_of

Pair = tuple[list[Array], list[Array]]

FLOAT32 = DTYPES["float32"]


def alone(replicas: tuple[int, ...] | None = None) -> Group:
    return group_of("alone", 0, 1, replicas=replicas, tuning=SMALL)


def refused(call: Callable[[], Any], error: type[Exception] = ValueError) -> str:
    with pytest.raises(error) as refusal:
        call()
    return str(refusal.value)


# --- Rows, some of which lie in the arena


def test_a_row_in_the_arena_may_come_with_one_that_lies_elsewhere() -> None:
    def member(me: Me) -> Any:
        group = me.join(replicas=(2, 2))
        found = []
        # One of the orders descends, wherever the two lie.
        for turned in (False, True):
            rows = [group.empty(5000), np.empty(5000, np.float32)]
            rows = rows[::-1] if turned else rows
            for i, row in enumerate(rows):
                row[...] = 10 * i + me.rank
            group.all_reduce(rows, out=rows)
            found.append((group.last_algorithm, np.unique(rows).tolist()))
        return found

    assert results(2, member) == [[("direct", [22.0])] * 2] * 2


def test_rows_that_descend_in_the_arena_go_through_slots() -> None:
    def member(me: Me) -> Any:
        group = me.join(replicas=(3, 3))
        block = group.empty((3, 5000))
        block[...] = np.arange(3)[:, None] + 10 * me.rank
        group.all_reduce(list(block[::-1]), out=list(block[::-1]))
        return group.last_algorithm, np.unique(block).tolist()

    assert results(2, member) == [("direct", [36.0])] * 2


@pytest.mark.parametrize("shift", [1, 3])
def test_results_in_other_steps_than_the_rows_go_through_slots(shift: int) -> None:
    def member(me: Me) -> Any:
        group = me.join(replicas=(2, 2))
        block = group.empty((6, 5000))
        block[...] = 1
        out = [block[2], block[2 + shift]]
        group.all_reduce([block[0], block[1]], out=out)
        return group.last_algorithm, np.unique(out).tolist(), block.sum() / 5000

    ran = "arena" if shift == 1 else "direct"
    assert results(2, member) == [(ran, [4.0], 12.0)] * 2


# --- Results in the place of other arrays


def tied(block: Array) -> Pair:
    return [block[0], block[0]], [block[0], block[0]]


def crossed(block: Array) -> Pair:
    return [block[0], block[1]], [block[1], block[0]]


def round_about(block: Array) -> Pair:
    return [block[0], block[1], block[2]], [block[1], block[2], block[0]]


def partly(block: Array) -> Pair:
    line = block.reshape(-1)
    return [line[0:600], line[600:900]], [line[300:900], line[1000:1300]]


def views(block: Array) -> Pair:
    first, second = block[0], block[1].view(np.int32)
    return [first, second], [second.view(np.float32), first.view(np.int32)]


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("given", [tied, crossed, round_about, partly, views])
def test_a_group_of_arrays_is_read_before_results_are_written_over_it(
    given: Callable[[Array], Pair], arena: bool, async_op: bool
) -> None:
    def member(me: Me) -> Any:
        group = me.join()
        block = group.empty((4, 900)) if arena else np.empty((4, 900), np.float32)
        block[...] = np.arange(1, 3601).reshape(4, 900) + me.rank
        arrays, out = given(block)
        sums = [group.all_reduce(x) for x in arrays]
        found = group.grouped_all_reduce(arrays, out=out, async_op=async_op)
        found = found.wait() if async_op else found
        assert all(one is other for one, other in zip(found, out, strict=True))
        return [same(one, total) for one, total in zip(out, sums, strict=True)]

    for told in results(2, member):
        assert all(told)


def test_many_arrays_apart_take_one_call_without_copies() -> None:
    group = alone()
    block, out = np.ones((300, 7), np.float32), np.zeros((300, 7), np.float32)

    for arrays, to in (
        (list(block), list(out)),
        (list(block), list(block)),
        ([*block[:0:-1], block[0]], [*block[:0:-1], block[0]]),
        ([block[0], block[0], block[1, :0]], [out[0], out[1], out[1, :0]]),
    ):
        assert group._reduce_lists(arrays, to, 0, -1) is None
    assert (block == 1).all()
    group.close()


# --- What has another shape


@pytest.mark.parametrize(
    ("x", "out", "row"),
    [
        ((2, 6), (2, 2, 3), "(2, 3), but the result has float64 of shape (6,)"),
        ((2, 2, 3), (2, 6), "(6,), but the result has float64 of shape (2, 3)"),
        ((2, 6), (2, 6, 1), "(6, 1), but the result has float64 of shape (6,)"),
        ((2, 2, 3), (2, 3, 2), "(3, 2), but the result has float64 of shape (2, 3)"),
    ],
)
def test_a_result_of_another_shape_is_refused(
    x: tuple[int, ...], out: tuple[int, ...], row: str
) -> None:
    group = alone((2,))
    told = f"out has float64 of shape {row}. Give an array like the result, or no out."

    assert refused(lambda: group.all_reduce(np.ones(x), out=np.ones(out))) == told
    assert (
        refused(lambda: group.grouped_all_reduce([np.ones(x)], out=[np.ones(out)]))
        == told
    )
    group.close()


def test_a_result_with_other_rows_is_refused() -> None:
    group = alone((2,))
    x = np.ones((2, 6))

    for shape in ((3, 4), (4, 3), (12,), (1, 12)):
        told = refused(lambda shape=shape: group.all_reduce(x, out=np.ones(shape)))
        assert told.startswith(f"{shape[0]} rows are given, but this instance has 2")
    group.close()


def test_an_axis_is_not_taken_for_one_that_is_shorter_by_all_of_32_bits() -> None:
    group = alone((2,))
    # It has no elements, so it takes no memory.
    long = np.empty(((1 << 32) + 2, 0), np.float32)

    assert group._reduce_lists([long], [long], 0, -1) is NotImplemented
    group.close()


@pytest.mark.parametrize("rows", [(0, 2), (2, 0), (0,), (1, (1 << 32) + 1)], ids=str)
def test_every_member_of_a_group_has_replicas(rows: tuple[int, ...]) -> None:
    member = next(i for i, count in enumerate(rows) if not 1 <= count <= 4096)

    assert refused(lambda: _core.Split(0, rows)) == (
        f"Member {member} has {rows[member]} replicas in the group, but must have 1 to "
        "4096. Leave members without any out of the group."
    )


def whole(group: Group, *shapes: tuple[int, ...]) -> None:
    group.grouped_all_reduce([np.ones(shape, np.float32) for shape in shapes])


def later(group: Group, *shapes: tuple[int, ...]) -> None:
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    group.grouped_all_reduce(arrays, async_op=True).wait()


def in_place(group: Group, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    group.all_reduce(x, out=x)


def to_one(group: Group, shape: tuple[int, ...]) -> None:
    group.reduce(np.ones(shape, np.float32))


def in_parts(group: Group, shape: tuple[int, ...]) -> None:
    group.reduce_scatter(np.ones(shape, np.float32))


def from_one(group: Group, shape: tuple[int, ...]) -> None:
    group.broadcast(np.ones(shape, np.float32))


def to_each(group: Group, shape: tuple[int, ...]) -> None:
    group.all_to_all(np.ones(shape, np.float32))


ALL_REDUCE = "all_reduce (sum, oneshot)"


@pytest.mark.parametrize(
    ("call", "shapes", "words"),
    [
        (whole, ([(2, 3)], [(3, 2)]), f"{ALL_REDUCE} of 6 float32"),
        (later, ([(2, 3)], [(3, 2)]), f"{ALL_REDUCE} of 6 float32"),
        (in_place, ([(4,)], [(4, 1)]), f"{ALL_REDUCE} of 4 float32"),
        (in_place, ([()], [(1,)]), f"{ALL_REDUCE} of 1 float32"),
        (whole, ([(3,), (5,)], [(5,), (3,)]), f"{ALL_REDUCE} of 8 float32"),
        (later, ([(3,), (5,)], [(5,), (3,)]), f"{ALL_REDUCE} of 8 float32"),
        (whole, ([(8,)], [(3,), (5,)]), f"{ALL_REDUCE} of 8 float32"),
        (whole, ([(2, 2)], [(2,), (2,)]), f"{ALL_REDUCE} of 4 float32"),
        (whole, ([(0,), (5,)], [(5,), (0,)]), f"{ALL_REDUCE} of 5 float32"),
        (
            to_one,
            ([(2, 3)], [(6,)]),
            "reduce (sum, direct) of 6 float32 with root on instance 0",
        ),
        (in_parts, ([(2, 3)], [(6,)]), "reduce_scatter (sum) of 6 float32"),
        (
            from_one,
            ([(2, 3)], [(3, 2)]),
            "broadcast of 6 float32 with root on instance 0",
        ),
        (to_each, ([(2, 3)], [(2, 3, 1)]), "all_to_all of 6 float32"),
    ],
)
def test_other_shapes_of_as_many_elements_do_not_match(
    call: Callable[..., None], shapes: tuple[Any, Any], words: str
) -> None:
    ended = run(2, lambda me: call(me.join(), *shapes[me.rank]))

    told = {
        f"Tensor layouts did not match on all instances: instance {one} came to "
        f"{words}, but instance {other} came to {words} in arrays of other shapes, or "
        "of other replicas. All instances must make the same calls in the same order."
        for one, other in ((0, 1), (1, 0))
    }
    assert [type(member.error) for member in ended] == [MismatchError] * 2
    assert str(ended[0].error) == str(ended[1].error)
    assert str(ended[0].error) in told


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3, 4), (1,) * 20], ids=str)
def test_members_agree_on_a_shape_whichever_way_they_hand_it_in(
    shape: tuple[int, ...],
) -> None:
    def member(me: Me) -> Any:
        flat = me.join()
        rows = flat.view((1, 1, 1))
        x = np.ones(shape, np.float32)
        ways: list[Callable[[], Any]] = [
            lambda: flat.all_reduce(x),
            lambda: flat.all_reduce(x, async_op=True).wait(),
            lambda: flat.grouped_all_reduce([x])[0],
            lambda: flat.grouped_all_reduce([x], async_op=True).wait()[0],
            lambda: rows.all_reduce(x[None])[0],
            lambda: rows.all_reduce([x])[0],
        ]
        return [ways[(i + me.rank) % len(ways)]() for i in range(len(ways))]

    for told in results(3, member):
        for found in told:
            assert same(found, np.full(shape, 3, np.float32))


# --- What is counted, and kept


def test_a_member_counts_its_reductions_by_how_they_were_carried_out() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x, there = np.ones(3000, np.float32), group.empty(3000)
        there[...] = 1
        before = group.transport.member.comm.runs()
        group.all_reduce(x[:3])
        group.grouped_all_reduce([x[:3], x[:4]], async_op=True).wait()
        for _ in range(2):
            group.all_reduce(x)
        group.reduce(x)
        for _ in range(5):
            group.all_reduce(x, algorithm="ring")
        group.all_reduce(there, out=there)
        group.reduce_scatter(x)
        group.barrier()
        return before, group.transport.member.comm.runs()

    assert results(2, member) == [((0, 0, 0, 0), (2, 3, 5, 1))] * 2


ROW = rows_of([np.ones(3, np.float32)])
TWO_ROWS = Rows(ROW.addresses * 2, (3,), FLOAT32)
MANY_AXES = Rows(ROW.addresses, (1,) * 255, FLOAT32)
BROADCAST, SUM = Operation.BROADCAST, Operation.ALL_REDUCE
SCATTERED_SUM = Operation.REDUCE_SCATTER


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (EngineCall(Operation.NEGOTIATION), "no operation 11"),
        (EngineCall(-1), "no operation -1"),
        (EngineCall(BROADCAST, [(ROW, ROW)], 13), "no dtype 13"),
        (EngineCall(SUM, [(ROW, ROW)], reduction=6), "no reduction 6"),
        (EngineCall(BROADCAST, [(ROW, ROW)]), "0 lengths .* 1 members"),
        (EngineCall(BROADCAST, [(ROW, ROW)], lengths=[12] * 2), "2 lengths .* 1"),
        (EngineCall(BROADCAST, [(ROW, ROW)], lengths=[12] * 257), "257 .* at most 256"),
        (EngineCall(BROADCAST, lengths=[12]), "0 arrays, but needs one"),
        (EngineCall(BROADCAST, [(ROW, ROW)] * 2, lengths=[12]), "2 arrays, but needs"),
        (EngineCall(BROADCAST, [(ROW, TWO_ROWS)], lengths=[12]), "1 rows .* and 2 to"),
        (EngineCall(BROADCAST, [(TWO_ROWS, ROW)], lengths=[12]), "2 rows .* reads 1"),
        (EngineCall(BROADCAST, [(MANY_AXES, ROW)], lengths=[12]), "255 axes"),
        (EngineCall(SUM, [(TWO_ROWS, ROW)]), "2 rows .* and 1 to be written"),
        (EngineCall(SUM, [(ROW, TWO_ROWS)]), "1 rows .* and 2 to be written"),
        (EngineCall(SUM, [(ROW, ROW), (MANY_AXES, ROW)]), "255 axes.* at most 254"),
        (EngineCall(SCATTERED_SUM), "0 arrays, but needs one"),
        (EngineCall(SCATTERED_SUM, [(ROW, ROW)] * 2), "2 arrays, but needs one"),
        (EngineCall(Operation.SEND, [(ROW, ROW)], root=7), "has no member 7"),
        (EngineCall(Operation.REDUCE, [(ROW, ROW)], root=1), "has no member 1"),
        (EngineCall(Operation.REDUCE, [(ROW, ROW)], root=-1), "has no member -1"),
    ],
)
def test_a_call_that_no_member_can_make_is_refused(
    call: EngineCall, message: str
) -> None:
    group = alone()
    with pytest.raises(ValueError, match=message):
        group.transport.run(call)
    # Nothing has begun.
    assert group.all_reduce(np.ones(2)).tolist() == [1, 1]
    group.close()


@pytest.mark.parametrize(
    "fields",
    [
        [*EngineCall(BROADCAST)],
        EngineCall(BROADCAST)[:-1],
        (None, *EngineCall(BROADCAST)[1:]),
        EngineCall(BROADCAST, [[ROW, ROW]], lengths=[12]),
        EngineCall(SUM, [(ROW,)]),
        EngineCall(SUM, [(ROW, None)]),
        EngineCall(SUM, [(ROW, SimpleNamespace(addresses=[1], shape=(3,)))]),
        EngineCall(SUM, [(SimpleNamespace(addresses=(1,), shape=3), ROW)]),
        EngineCall(SUM, [(SimpleNamespace(addresses=(None,), shape=(3,)), ROW)]),
        EngineCall(SUM, None),
    ],
)
def test_fields_of_other_types_are_refused(fields: Any) -> None:
    group = alone()
    with pytest.raises((TypeError, AttributeError)):
        group.transport.run(fields)
    group.close()


def test_the_core_reads_each_field_of_a_call() -> None:
    longs = rows_of([np.ones(3, np.int64)])

    def member(me: Me) -> Any:
        group = me.join()
        root = {"dtype": longs.dtype, "root": 1, "name": 7}
        pair = [(longs, longs)]
        lengths = [16, 8]
        shared = Operation.BROADCAST, pair
        calls = [
            EngineCall(SUM, pair, longs.dtype, reduction=2, algorithm=RING, name=5),
            EngineCall(Operation.REDUCE, pair, reduction=3, **root),
            EngineCall(*shared, lengths=[24] * 2, **root),
            EngineCall(*shared, lengths=[24] * 2, prelude_to=Operation.SCATTER, **root),
            EngineCall(Operation.GATHER, pair, lengths=lengths, **root),
        ]
        seen: list[Any] = []
        group.set_trace(lambda call, *_: seen.append(call))
        for call in calls:
            group.transport.run(call)
        group.close()
        return seen == [description_of(call) for call in calls]

    assert results(2, member) == [True, True]


def test_a_reduction_needs_a_split() -> None:
    group = alone()
    row = rows_of([np.ones(3, np.float32)])
    call = EngineCall(Operation.ALL_REDUCE, [(row, row)])
    with pytest.raises(TypeError, match="needs a Split"):
        group.transport.core.comm.run(None, call)
    group.close()


def test_a_call_that_is_refused_keeps_nothing() -> None:
    group = alone()
    x = np.ones(3, np.float32)
    row = rows_of([x])
    broadcast = EngineCall(Operation.BROADCAST, [(row, row)], root=0, lengths=[12] * 2)
    two_rows = EngineCall(Operation.ALL_REDUCE, [(TWO_ROWS, row)])
    calls: list[Callable[[], Any]] = [
        lambda: group.transport.run(broadcast),
        lambda: group.transport.run(two_rows),
        lambda: group.all_reduce(x, out=np.ones((3, 1), np.float32)),
        lambda: group.grouped_all_reduce([x], out=[np.ones((3, 1), np.float32)]),
    ]
    for call in calls:
        refused(call)
        gc.collect()
        before = sys.getrefcount(None), sys.getrefcount(x)
        for _ in range(1000):
            refused(call)
        gc.collect()
        assert abs(sys.getrefcount(None) - before[0]) < 500
        assert sys.getrefcount(x) == before[1]
    group.close()


@pytest.mark.parametrize(
    "call", ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "all_to_all"]
)
def test_a_list_of_arrays_is_refused_where_a_member_gives_one(call: str) -> None:
    x = np.ones((1, 1), np.float32)
    with group_of(f"list-{call}", 0, 1) as group:
        for given in ([x], [x, x], (x,)):
            message = refused(
                lambda given=given: getattr(group, call)(given), TypeError
            )
            assert message == (
                f"A list of {len(given)} entries with arrays is given, but each member "
                "of this group gives one array. Use grouped_all_reduce to reduce "
                "several arrays, or make one of them with np.stack."
            )
        assert group.all_reduce([1, 2]).tolist() == [1, 2]
