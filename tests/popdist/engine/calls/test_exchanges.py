import mmap
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from popdist.engine.calls import array_transport, exchanges
from popdist.engine.group import Group
from popdist.engine.spec import reference
from popdist.engine.spec.dtypes import REDUCTIONS
from popdist.errors import CollectiveAbortedError, GroupUnusableError
from tests.popdist.engine.members import SMALL, Me, Members, group_of, results
from tests.popdist.engine.samples import BFLOAT16, DTYPES, Array, same, sample

pytestmark = pytest.mark.usefixtures("each_transport")

ROWS = [(1,), (3,), (1, 1), (2, 2), (1, 2), (3, 1, 2), (1, 1, 1, 1, 1), (2, 1, 3, 1)]


def expected(inputs: list[Array], op: str = "sum") -> Array:
    """Return the reduced row, of arrays of any shape (L, ...)."""
    row = reference.all_reduce([x.reshape(len(x), -1) for x in inputs], op)
    return row.reshape(inputs[0].shape[1:])


def flattened(inputs: list[Array]) -> list[Array]:
    return [x.reshape(len(x), -1) for x in inputs]


def several_blocks(rows: tuple[int, ...]) -> int:
    """Return elements of float32 for which any operation needs several blocks."""
    return SMALL.fitted().block_bytes * 2 // 4 + 5


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_reduce_gives_the_result_where_the_root_lives(rows: tuple[int, ...]) -> None:
    lengths = [0, 1, 100, several_blocks(rows)]
    inputs = {
        n: [sample([r, n], (count, n), "float32") for r, count in enumerate(rows)]
        for n in lengths
    }

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        return [
            (n, root, group.reduce(x[me.rank], root=root))
            for n, x in inputs.items()
            for root in range(sum(rows))
        ]

    owners = [rank for rank, count in enumerate(rows) for _ in range(count)]
    for rank, told in enumerate(results(len(rows), member)):
        for n, root, found in told:
            if owners[root] == rank:
                assert same(found, expected(inputs[n])), (n, root)
            else:
                assert found is None


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_reduce_scatter_gives_each_replica_its_part(rows: tuple[int, ...]) -> None:
    replicas = sum(rows)
    lengths = [0, 1, 7, several_blocks(rows)]
    inputs = {
        n: [
            sample([r, n], (count, replicas, n), "float32")
            for r, count in enumerate(rows)
        ]
        for n in lengths
    }

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        return [group.reduce_scatter(x[me.rank]) for x in inputs.values()]

    for rank, told in enumerate(results(len(rows), member)):
        for found, (n, x) in zip(told, inputs.items(), strict=True):
            parts = reference.reduce_scatter(flattened(x))[rank]
            assert same(found, parts.reshape(rows[rank], 1, n)), n


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_are_reduced_in_every_dtype_by_every_operation(dtype: Any) -> None:
    rows = (1, 2, 1)
    ops = [op for op in REDUCTIONS if dtype.kind != "b" or op != "mean"]
    inputs = [sample(r, (count, 8, 33), dtype) for r, count in enumerate(rows)]

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        x = inputs[me.rank]
        return [(op, group.reduce(x, op), group.reduce_scatter(x, op)) for op in ops]

    for rank, told in enumerate(results(3, member)):
        for op, whole, part in told:
            row = expected(inputs, op)
            assert whole is None if rank else same(whole, row)
            first = 2 * sum(rows[:rank])
            parts = row[first : first + 2 * rows[rank]]
            assert same(part, parts.reshape(rows[rank], 2, 33)), op


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_all_gather_and_gather_bring_arrays_of_all_lengths_together(
    rows: tuple[int, ...],
) -> None:
    dtypes = ["float32", "int8", BFLOAT16, bool, "uint64"]
    shapes = [(), (0,), (3, 5), (several_blocks(rows),), (1, 0, 2), (7,)]
    inputs = [
        [
            sample([r, i], shapes[(2 * r + i) % 6], dtypes[(r + i) % 5])
            for i in range(count)
        ]
        for r, count in enumerate(rows)
    ]

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        mine = inputs[me.rank]
        last = len(group) - 1
        return group.all_gather(mine), group.gather(mine), group.gather(mine, last)

    flat = [row for mine in inputs for row in mine]
    for rank, told in enumerate(results(len(rows), member)):
        wanted = [True, rank == 0, rank == len(rows) - 1]
        for found, here in zip(told, wanted, strict=True):
            if not here:
                assert found is None
                continue
            assert len(found) == len(flat)
            for one, other in zip(found, flat, strict=True):
                assert same(one, other)
                one[...] = 0


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_broadcast_gives_all_the_roots_array(rows: tuple[int, ...]) -> None:
    lengths = [0, 1, 100, several_blocks(rows)]
    inputs = {
        n: [sample([r, n], (count, n), "float32") for r, count in enumerate(rows)]
        for n in lengths
    }

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        found = []
        for n, x in inputs.items():
            for root in range(len(group)):
                out = x[me.rank].copy()
                group.broadcast(out, root, out=out)
                found.append((n, root, group.broadcast(x[me.rank], root), out))
        return found

    for rank, told in enumerate(results(len(rows), member)):
        for n, root, found, out in told:
            row = np.concatenate(inputs[n])[root]
            assert same(found, np.stack([row] * rows[rank])), (n, root)
            assert same(out, found)


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_scatter_gives_each_replica_its_row_of_the_root(rows: tuple[int, ...]) -> None:
    replicas = sum(rows)
    blocks = [
        sample(n, (replicas, n), dtype)
        for n, dtype in [(0, "int8"), (1, BFLOAT16), (several_blocks(rows), "float32")]
    ]

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        found = []
        for block in blocks:
            for root in (0, replicas - 1):
                here = sum(rows[: me.rank]) <= root < sum(rows[: me.rank + 1])
                found.append((block, group.scatter(block if here else None, root)))
                given = list(block) if here else None
                found.append((block, group.scatter(given, root)))
        return found

    for rank, told in enumerate(results(len(rows), member)):
        first = sum(rows[:rank])
        for block, found in told:
            assert same(found, block[first : first + rows[rank]])


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_all_to_all_hands_each_replica_its_part(rows: tuple[int, ...]) -> None:
    replicas = sum(rows)
    inputs = {
        n: [
            sample([r, n], (count, replicas, n), "float32")
            for r, count in enumerate(rows)
        ]
        for n in (0, 1, 33, several_blocks(rows) // len(rows))
    }

    def member(me: Me) -> Any:
        group = me.join(replicas=rows)
        return [group.all_to_all(x[me.rank]) for x in inputs.values()]

    for rank, told in enumerate(results(len(rows), member)):
        for found, x in zip(told, inputs.values(), strict=True):
            parts = reference.all_to_all(flattened(x))[rank]
            assert same(found, parts.reshape(x[rank].shape))


@pytest.mark.parametrize("size", [1, 2, 3, 13])
def test_a_flat_group_hands_on_arrays_without_a_leading_axis(size: int) -> None:
    inputs = [sample(r, (size, 2), "float32") for r in range(size)]

    def member(me: Me) -> Any:
        group = me.join()
        x = inputs[me.rank]
        return {
            "reduce": group.reduce(x, root=size - 1),
            "reduce_scatter": group.reduce_scatter(x),
            "all_gather": np.stack(group.all_gather(x)),
            "broadcast": group.broadcast(x, size - 1),
            "scatter": group.scatter(x if me.rank == 0 else None),
            "all_to_all": group.all_to_all(x),
        }

    row = expected([x[None] for x in inputs])
    stacked = np.stack(inputs)
    for rank, found in enumerate(results(size, member)):
        if rank == size - 1:
            assert same(found["reduce"], row)
        assert same(found["reduce_scatter"], row[rank : rank + 1])
        assert same(found["all_gather"], stacked)
        assert same(found["broadcast"], inputs[-1])
        assert same(found["scatter"], inputs[0][rank])
        assert same(found["all_to_all"], stacked[:, rank])


@pytest.mark.parametrize("size", [1, 2, 3, 13])
def test_no_member_leaves_a_barrier_before_all_have_come(size: int) -> None:
    def member(me: Me) -> list[int]:
        group = me.join()
        seen = []
        for turn in range(50):
            # Each turn another member comes last, and has said so before.
            if me.rank == turn % size:
                counter[me.rank] += 1
            group.barrier()
            seen.append(int(counter.sum()))
            group.barrier()
        return seen

    counter = np.frombuffer(mmap.mmap(-1, size * 8), np.int64)
    assert results(size, member) == [list(range(1, 51))] * size


@pytest.mark.parametrize("length", [0, 1, 8192, 8193, 100_000])
def test_a_member_receives_the_array_that_another_one_sends(length: int) -> None:
    inputs = [sample([r, length], (length,), "float32") for r in range(3)]

    def member(me: Me) -> Any:
        group = me.join()
        to, source = (me.rank + 1) % 3, (me.rank - 1) % 3
        out = np.zeros(length, np.float32)
        strided = np.zeros((length, 2), np.float32)[:, 0]
        # What is larger than what is on its way at once needs a receiver first.
        for target in (out, strided):
            if me.rank == 0:
                group.send(inputs[0], to)
                assert group.recv(target, source) is target
            else:
                group.recv(target, source)
                group.send(inputs[me.rank][::1], to)
        return out, strided

    for rank, told in enumerate(results(3, member)):
        for found in told:
            assert same(found, inputs[rank - 1])


def test_both_may_send_first_what_is_small() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        found = []
        for turn in range(100):
            group.send(np.int64(turn + me.rank), 1 - me.rank)
            out = np.zeros((), np.int64)
            found.append(int(group.recv(out, 1 - me.rank)))
            if turn % 3 == 0:
                group.barrier()
        return found

    assert results(2, member) == [
        [turn + 1 for turn in range(100)],
        [*range(100)],
    ]


def unknown(*_: Any) -> np.dtype[Any]:
    raise TypeError("There is no such\0dtype \udcff here.")


def interrupted(*_: Any) -> np.dtype[Any]:
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["all_gather", "gather", "scatter"])
@pytest.mark.parametrize(
    ("failing", "error", "why"),
    [
        (
            unknown,
            TypeError,
            "failed in {call}, which ended it for all: TypeError: There is no such "
            "dtype ? here.",
        ),
        (
            interrupted,
            KeyboardInterrupt,
            "was interrupted in {call}, which ended it for all.",
        ),
    ],
    ids=["an error", "control-c"],
)
def test_an_error_between_the_steps_of_a_call_ends_it_for_all(
    call: str,
    failing: Any,
    error: type[BaseException],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In one piece, the core would gather it without a step in Python. A smaller array
    # would travel with its header, in one step.
    in_pieces = np.ones((3, 200), order="F")

    def member(me: Me) -> str:
        group = me.join(instances=(10, 11, 12))
        if me.rank != 1:
            with pytest.raises(CollectiveAbortedError) as told:
                getattr(group, call)(in_pieces)
            return str(told.value)
        for module in (array_transport, exchanges):
            monkeypatch.setattr(module, "described", failing)
        with pytest.raises(error):
            getattr(group, call)(in_pieces)
        with pytest.raises(GroupUnusableError) as refusal:
            group.barrier()
        return str(refusal.value)

    first, second, third = results(3, member)

    said = f"Instance 11 {why.format(call=call)}"
    assert (first, third) == (said, said)
    assert f"found: {said} Let the first error end the program" in second


HUGE = np.lib.stride_tricks.as_strided(np.ones(2), (2, 1 << 50), (0, 0))

# Calls whose arrays no machine can hold, and one that the others make meanwhile.
WITHOUT_MEMORY: dict[str, Callable[[Group], Any]] = {
    "all_reduce": lambda group: group.all_reduce(HUGE),
    "grouped_all_reduce": lambda group: group.grouped_all_reduce([HUGE]),
    "reduce": lambda group: group.reduce(HUGE),
    "reduce_scatter": lambda group: group.reduce_scatter(HUGE),
    "broadcast": lambda group: group.broadcast(HUGE),
    "all_gather": lambda group: group.all_gather(HUGE),
    "gather": lambda group: group.gather(HUGE),
    "scatter": lambda group: group.scatter(HUGE, 1),
    "all_to_all": lambda group: group.all_to_all(HUGE),
    "send": lambda group: group.send(HUGE, 0),
}


@pytest.mark.parametrize("call", WITHOUT_MEMORY)
def test_one_without_memory_for_a_call_tells_the_others(call: str) -> None:
    def member(me: Me) -> str:
        group = me.join()
        if me.rank == 1:
            with pytest.raises(MemoryError):
                WITHOUT_MEMORY[call](group)
            me.hear()
            return ""
        with pytest.raises(CollectiveAbortedError) as told:
            group.barrier()
        return str(told.value)

    with Members(2, member) as members:
        while not members.finished([0]):
            time.sleep(0.01)
        members.tell(1, "go")
        first, _ = members.finish()
    assert re.match(
        rf"Instance 1 failed in {call}, which ended it for all: \w*MemoryError: ",
        first.value,
    )


def test_wrong_arguments_leave_the_group_as_it_was() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        wrong = np.ones((2, 2), complex)
        calls = [
            lambda **how: group.all_gather(wrong, **how),
            lambda **how: group.all_gather(np.ones((1,) * 15), **how),
            lambda **how: group.gather(wrong, **how),
            lambda **how: group.broadcast(wrong, **how),
            lambda **how: group.all_to_all(wrong, **how),
            lambda **how: group.scatter(wrong, me.rank, **how),
            lambda **how: group.reduce(wrong, **how),
            lambda **how: group.reduce_scatter(wrong, **how),
            lambda **how: group.all_reduce(wrong, **how),
            lambda **how: group.grouped_all_reduce([wrong], **how),
            lambda **how: group.send(wrong, 1 - me.rank, **how),
            lambda **how: group.recv(wrong, 1 - me.rank, **how),
        ]
        for call in calls if me.rank else ():
            for how in ({}, {"async_op": True}):
                with pytest.raises((TypeError, ValueError)):
                    call(**how)
        return int(group.all_reduce(np.int64(1)))

    assert results(2, member) == [2, 2]


def refused(call: Any, error: type[Exception] = ValueError) -> str:
    with pytest.raises(error) as refusal:
        call()
    return str(refusal.value)


def test_an_exchange_of_wrong_arrays_is_refused_before_the_others_know() -> None:
    group = group_of("alone", 0, 1, replicas=(2,), tuning=SMALL)
    x = np.ones((2, 3))

    assert refused(lambda: group.broadcast(x, 2)) == (
        "The root is replica 2, but the group has replicas 0 to 1."
    )
    assert refused(lambda: group.reduce(x, root=-1)) == (
        "The root is replica -1, but the group has replicas 0 to 1."
    )
    assert refused(lambda: group.reduce_scatter(x)) == (
        "The array's shape is (3,), but reduce_scatter needs a leading axis that 2 "
        "replicas can share equally."
    )
    assert refused(lambda: group.all_to_all(x)) == (
        "The array's shape is (3,), but all_to_all needs a leading axis of 2: a "
        "share for each replica."
    )
    assert refused(lambda: group.scatter(np.ones(3))) == (
        "The array to scatter has shape (3,), but needs a leading axis of 2: a share "
        "for each replica."
    )
    assert refused(lambda: group.send(x, 0)) == (
        "send and recv are between two instances, but the peers of this group are "
        "replicas. Use popdist.instance_group()."
    )
    flat = group_of("flat", 0, 1, tuning=SMALL)
    assert refused(lambda: flat.send(x, 0)) == (
        "The dest is member 0, but must be one of 0 to 0, and not 0, which is this one."
    )
    assert refused(lambda: flat.broadcast(x, 1)) == (
        "The root is member 1, but the group has members 0 to 0."
    )
    flat.close()
    assert refused(lambda: group.all_gather(np.ones((2,) + (1,) * 15))) == (
        "The array has 15 axes, but can have at most 14 here."
    )
    for call in (group.all_gather, group.broadcast, group.all_to_all, group.gather):
        with pytest.raises(TypeError, match="The array's dtype is complex128, but"):
            call(np.ones((2, 2), complex))
    with pytest.raises(TypeError, match="The array's dtype is complex128, but"):
        group.scatter(np.ones((2, 2), complex))
    assert same(group.all_gather(x), x)
    group.close()


def test_receive_needs_an_array_that_can_be_written() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        out = np.zeros(3)
        out.flags.writeable = False
        message = ""
        if me.rank:
            message = refused(lambda: group.recv(out, 0))
        group.barrier()
        return message, out.tolist()

    message = "out is not a writable array. Give a writable one, such as a copy of it."
    assert results(2, member) == [("", [0.0] * 3), (message, [0.0] * 3)]
