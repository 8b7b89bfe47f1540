"""Horovod's calls on tensors, among ranks that are forks of the test."""

import inspect
import itertools
import os
import pickle
import random
import signal
import threading
import time
import warnings
from typing import Any

import pytest
import torch

from popdist.negotiation import calls, stall_watch
from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.ranks_of_horovod import hvd, results, start

pytestmark = pytest.mark.usefixtures("each_transport")

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def test_allreduce_of_every_dtype_by_every_operation() -> None:
    def rank(me: int) -> list[Any]:
        wrong = []
        for dtype in [*INTEGERS, *FLOATS]:
            each = [(torch.arange(6).reshape(2, 3) + i).to(dtype) for i in range(3)]
            stack = torch.stack(each)
            mean = stack.sum(0, dtype=dtype)
            mean = mean.div(
                3, rounding_mode=None if dtype.is_floating_point else "trunc"
            )
            expected = {
                None: mean,
                hvd.Average: mean,
                hvd.Sum: stack.sum(0, dtype=dtype),
                hvd.Min: stack.amin(0),
                hvd.Max: stack.amax(0),
                hvd.Product: stack.prod(0, dtype=dtype),
            }
            for op, result in expected.items():
                found = hvd.allreduce(each[me], op=op)
                in_place = each[me].clone()
                returned = hvd.allreduce_(in_place, op=op)
                if not (same(found, result) and same(in_place, result)):
                    wrong.append((dtype, op, found, result))
                if returned is not in_place:
                    wrong.append((dtype, op, "not the tensor itself"))
        flags = hvd.allreduce(torch.tensor([me == 1, False]), op=hvd.Sum)
        return [wrong, flags.tolist()]

    assert results(3, rank) == [[[], [True, False]]] * 3


def test_averages_of_integers_are_truncated_and_sums_are_average_false() -> None:
    def rank(me: int) -> list[Any]:
        below = torch.tensor([-3 if me else 0, 7])
        return [
            hvd.allreduce(below, average=True).tolist(),
            hvd.allreduce(below, average=False).tolist(),
            hvd.allreduce(torch.tensor(float(me))).item(),
            hvd.allreduce(torch.empty(0, 3)).shape,
        ]

    assert results(2, rank) == [[[-1, 7], [-3, 14], 0.5, (0, 3)]] * 2


def test_scale_factors_apply_before_and_after_the_reduction() -> None:
    def rank(me: int) -> list[Any]:
        x = torch.tensor([3, 5]) + me
        return [
            # In float64, truncated: [1, 2] + [2, 3].
            hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5).tolist(),
            hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5).tolist(),
            hvd.allreduce(x.float(), prescale_factor=2, postscale_factor=8).tolist(),
            hvd.reducescatter(
                x.half(), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25
            ).tolist(),
            x.tolist(),
        ]

    for me, found in enumerate(results(2, rank)):
        scattered = [[3.5], [5.5]][me]
        kept = [3 + me, 5 + me]
        assert found == [[3, 5], [3, 5], [56.0, 88.0], scattered, kept]


def test_grouped_calls_take_tensors_of_all_shapes_and_dtypes() -> None:
    def rank(me: int) -> list[Any]:
        tied = torch.ones(3) * (me + 1)
        turned = torch.arange(6.0).reshape(2, 3).t()
        whole = torch.arange(4, dtype=torch.int16)
        every_other = torch.zeros(6)
        every_other[::2] = me + 1.0
        mixed = [turned, whole, torch.tensor(me == 0), torch.empty(0)]
        reduced = hvd.grouped_allreduce(mixed, op=hvd.Sum)
        in_place = [tied, tied, every_other[::2]]
        returned = hvd.grouped_allreduce_(in_place, op=hvd.Sum)
        gathered = hvd.grouped_allgather([torch.full((me,), me), turned[:1]])
        scattered = hvd.grouped_reducescatter([turned, whole], op=hvd.Sum)
        return [
            [one.tolist() for one in reduced],
            tied.tolist(),
            every_other.tolist(),
            [a is b for a, b in zip(in_place, returned, strict=True)],
            [one.tolist() for one in gathered],
            [one.tolist() for one in scattered],
        ]

    for me, found in enumerate(results(2, rank)):
        assert found == [
            [[[0, 6], [2, 8], [4, 10]], [0, 2, 4, 6], True, []],
            [3.0] * 3,
            [3.0, 0.0] * 3,
            [True] * 3,
            [[1], [[0.0, 3.0], [0.0, 3.0]]],
            [
                [[[0.0, 6.0], [2.0, 8.0]], [[4.0, 10.0]]][me],
                [[0, 2], [4, 6]][me],
            ],
        ]


def test_rows_are_gathered_scattered_and_exchanged_unevenly() -> None:
    def rank(me: int) -> list[Any]:
        gathered = hvd.allgather(torch.full((me + 1, 2), me, dtype=torch.complex64))
        broadcast = hvd.broadcast(torch.full((3,), me), 2)
        given = torch.full((2,), me, dtype=torch.bool)
        assert hvd.broadcast_(given, 1) is given
        # Rank i sends i + j rows to rank j, and keeps one row.
        splits = [me + j for j in range(3)]
        rows = torch.arange(sum(splits) + 1) + 100 * me
        exchanged, received = hvd.alltoall(rows, torch.tensor(splits))
        equal = hvd.alltoall(torch.arange(6.0).reshape(6, 1) + 10 * me)
        part = hvd.reducescatter(torch.arange(7.0), op=hvd.Sum)
        return [
            gathered.real[:, 1].tolist(),
            broadcast.tolist(),
            given.tolist(),
            exchanged.tolist(),
            (received.tolist(), received.dtype),
            equal.flatten().tolist(),
            part.tolist(),
        ]

    expected = [
        (
            [100, 200, 201],
            [0, 1, 2],
            [0, 1, 10, 11, 20, 21],
            [0.0, 3.0, 6.0],
        ),
        ([0, 101, 102, 202, 203, 204], [1, 2, 3], [2, 3, 12, 13, 22, 23], [9.0, 12.0]),
        (
            [1, 2, 103, 104, 105, 205, 206, 207, 208],
            [2, 3, 4],
            [4, 5, 14, 15, 24, 25],
            [15.0, 18.0],
        ),
    ]
    for found, (rows, received, equal, part) in zip(
        results(3, rank), expected, strict=True
    ):
        assert found == [
            [0, 1, 1, 2, 2, 2],
            [2, 2, 2],
            [True, True],
            rows,
            (received, torch.int32),
            equal,
            part,
        ]


def test_tensors_without_rows_and_of_any_layout_are_taken() -> None:
    def rank(me: int) -> Any:
        shapes = [
            hvd.allgather(torch.empty(0, 3)).shape,
            hvd.allgather(torch.ones(me, 0)).shape,
            hvd.broadcast(torch.empty(0), 1).shape,
            hvd.alltoall(torch.empty(0, 2)).shape,
            hvd.alltoall(torch.ones(5, 2), [0, 0, 0])[0].shape,
            # The last rank gets no row.
            hvd.reducescatter(torch.ones(2, 2), op=hvd.Sum).shape,
        ]
        image = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
        image *= me
        hvd.allreduce_(image, op=hvd.Sum)
        assert image.is_contiguous(memory_format=torch.channels_last)
        turned = hvd.broadcast(
            (torch.ones(2, dtype=torch.complex64) * 1j * me).conj(), 1
        )
        param = torch.nn.Parameter(torch.ones(2) * me)
        hvd.allreduce_(param, op=hvd.Sum)
        nothing = [hvd.grouped_allreduce([]), hvd.grouped_allgather([])]
        return shapes, image.unique().tolist(), turned.tolist(), param.tolist(), nothing

    for me, found in enumerate(results(3, rank)):
        rows = [1, 1, 0][me]
        assert found == (
            [(0, 3), (3, 0), (0,), (0, 2), (0, 2), (rows, 2)],
            [3.0],
            [-1j, -1j],
            [3.0, 3.0],
            [[], []],
        )


def test_calls_in_any_order_are_matched_by_their_names() -> None:
    def rank(me: int) -> Any:
        chance = random.Random(me)
        for step in range(20):
            numbers = list(range(30))
            chance.shuffle(numbers)
            handles = {}
            for i in numbers:
                x = torch.full((i + 1,), float(i + me + step))
                if i % 3 == 0:
                    handles[i] = hvd.allreduce_async_(x, name=f"x{i}", op=hvd.Sum)
                elif i % 3 == 1:
                    handles[i] = hvd.allgather_async(x, name=f"x{i}")
                else:
                    handles[i] = hvd.broadcast_async(x, 1, name=f"x{i}")
                if chance.random() < 0.1:
                    time.sleep(0.001)
            chance.shuffle(numbers)
            for i in numbers:
                found = hvd.synchronize(handles[i])
                assert hvd.poll(handles[i])
                if i % 3 == 0:
                    assert found.tolist() == [3.0 * (i + step + 1)] * (i + 1)
                elif i % 3 == 1:
                    assert found.sum() == 3.0 * (i + step + 1) * (i + 1)
                else:
                    assert found.tolist() == [i + step + 1.0] * (i + 1)
        return "done"

    assert results(3, rank) == ["done"] * 3


def test_threads_of_a_rank_make_calls_at_the_same_time() -> None:
    def rank(me: int) -> Any:
        found: dict[int, float] = {}

        def call(number: int) -> None:
            for step in range(30):
                one = hvd.allreduce(torch.tensor(1.0 * step), name=f"{number}")
                found[number] = one.item()

        numbers = list(range(4))
        random.Random(me).shuffle(numbers)
        threads = [threading.Thread(target=call, args=(one,)) for one in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    assert results(2, rank) == [{0: 29.0, 1: 29.0, 2: 29.0, 3: 29.0}] * 2


def test_a_call_that_differs_among_ranks_fails_on_all_and_the_next_one_works() -> None:
    def rank(me: int) -> Any:
        even = me % 2 == 0
        texts = [
            error_of(lambda: hvd.allreduce(torch.ones(17 + me))),
            error_of(lambda: hvd.allreduce(torch.ones((4, 3) if me else (12,)))),
            error_of(lambda: hvd.allreduce(torch.ones(2, dtype=FLOATS[me + 1]))),
            error_of(lambda: hvd.allreduce(torch.ones(2), op=hvd.Sum if me else None)),
            error_of(lambda: hvd.allgather(torch.ones(2, me + 1))),
            error_of(lambda: hvd.allgather(torch.tensor(1.0))),
            error_of(lambda: hvd.broadcast(torch.ones(2), me)),
            error_of(lambda: hvd.alltoall(torch.ones(2, dtype=INTEGERS[me]))),
            error_of(lambda: hvd.reducescatter(torch.ones(2 + me))),
            error_of(
                lambda: (
                    hvd.allgather(torch.ones(2), name="gather.x")
                    if even
                    else hvd.allgather(torch.ones(2, 2), name="gather.x")
                )
            ),
        ]
        assert {kind for kind, _ in texts} == {"HorovodInternalError"}
        return [text for _, text in texts], hvd.allreduce(torch.ones(2)).tolist()

    found = results(2, rank)

    assert found[0] == found[1]
    assert found[0][1] == [1.0, 1.0]
    assert found[0][0][0] == (
        "The ranks' shapes differ in allreduce 'allreduce.noname.0': rank 0 has [17], "
        "but rank 1 has [18]. All ranks must make the same call."
    )


def test_arguments_that_cannot_be_right_are_refused_before_any_rank_is_asked() -> None:
    def rank(me: int) -> Any:
        ones = torch.ones(3)
        refused = [
            lambda: hvd.allreduce(ones, average=True, op=hvd.Sum),
            lambda: hvd.allreduce(ones, op=17),
            lambda: hvd.allreduce([1.0]),
            lambda: hvd.allreduce(torch.ones(3, dtype=torch.complex64)),
            lambda: hvd.allreduce(torch.ones(3, dtype=torch.bool)),
            lambda: hvd.allreduce(torch.ones(3, device="meta")),
            lambda: hvd.allreduce_(ones.to_sparse()),
            lambda: hvd.broadcast(ones, 2),
            lambda: hvd.alltoall(ones),
            lambda: hvd.alltoall(ones, [2, 2]),
            lambda: hvd.alltoall(ones, [1]),
            lambda: hvd.alltoall(ones, torch.ones(2)),
            lambda: hvd.sparse_allreduce_async(ones),
            lambda: hvd.allreduce(ones, process_set=hvd.ProcessSet([0])),
            # Programs expect a RuntimeError, which this one is.
            lambda: hvd.reducescatter(ones, op=hvd.Adasum),
            lambda: hvd.allreduce(torch.ones(3, dtype=torch.int32), op=hvd.Adasum),
        ]
        return [error_of(call)[0] for call in refused]

    for kinds in results(2, rank):
        assert kinds == ["ValueError"] * 14 + ["NotImplementedError"] * 2


def test_two_calls_of_one_name_are_refused_while_the_first_is_under_way() -> None:
    def rank(me: int) -> Any:
        if me == 0:
            first = hvd.allreduce_async(torch.ones(2), name="x")
            text = error_of(lambda: hvd.allreduce_async(torch.ones(2), name="x"))
            polled = hvd.poll(first)
            hvd.barrier()
            return text, polled, hvd.synchronize(first).tolist()
        # Not before rank 0 has made both of its calls.
        hvd.barrier()
        return hvd.allreduce(torch.ones(2), name="x").tolist()

    assert results(2, rank) == [
        (
            (
                "ValueError",
                "A call named 'allreduce.x' is under way on this rank, and two of one "
                "name cannot be told apart. Wait for it with synchronize(), or use "
                "another name.",
            ),
            False,
            [1.0, 1.0],
        ),
        [1.0, 1.0],
    ]


def test_ranks_that_join_contribute_what_changes_nothing() -> None:
    def work(me: int) -> list[Any]:
        x = torch.tensor([-3.0, 6.0])
        found = [
            hvd.allreduce(x).tolist(),
            hvd.allreduce(x.long() - 1, average=True).tolist(),
            hvd.allreduce(x, op=hvd.Max).tolist(),
            hvd.allreduce(x.char(), op=hvd.Min).tolist(),
            hvd.allreduce(x, op=hvd.Product, name="p").tolist(),
        ]
        hvd.barrier()
        return [*found, error_of(lambda: hvd.broadcast(torch.ones(3), 1))[0]]

    def rank(me: int) -> Any:
        found = []
        for first in (0, 2):
            if me != first:
                found.append(work(me))
            if me == 1:
                # It comes to an end when both others have joined.
                hvd.allreduce(torch.ones(1), name=f"alone {first}")
            last = hvd.join()
            # Calls without a name go on with the same numbers.
            found += [last, hvd.allreduce(torch.tensor(1.0 * me)).item()]
        return found

    # Averages are over all ranks.
    done = [[-2, 4], [-2, 3], [-3, 6], [-3, 6], [9, 36], "HorovodInternalError"]
    assert results(3, rank) == [
        [1, 1.0, done, 1, 1.0],
        [done, 1, 1.0, done, 1, 1.0],
        [done, 1, 1.0, 1, 1.0],
    ]


def test_gradients_flow_through_calls() -> None:
    def rank(me: int) -> Any:
        def gradient(call: Any, rows: int = 4) -> list[Any]:
            x = torch.arange(2.0 * rows).reshape(rows, 2).requires_grad_()
            out = call(x)
            weight = torch.full_like(out, me + 1.0)
            out.backward(weight)
            return x.grad.tolist()

        return [
            gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)),
            gradient(lambda x: hvd.allreduce(x)),
            gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0)),
            gradient(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1]),
            gradient(hvd.allgather, rows=me + 1),
            gradient(lambda x: hvd.grouped_allgather([x, x])[1], rows=me + 1),
            gradient(lambda x: hvd.broadcast(x, 1)),
            gradient(hvd.alltoall),
            gradient(lambda x: hvd.alltoall(x, [1, 1])[0]),
            gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)),
            gradient(hvd.reducescatter),
            gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16)),
            error_of(lambda: gradient(lambda x: hvd.allreduce(x, op=hvd.Max)))[0],
        ]

    def filled(*rows: float) -> list[list[float]]:
        return [[row, row] for row in rows]

    for me, found in enumerate(results(2, rank)):
        assert found == [
            filled(3, 3, 3, 3),
            filled(1.5, 1.5, 1.5, 1.5),
            filled(6, 6, 6, 6),
            filled(3, 3, 3, 3),
            filled(*[1.5] * (me + 1)),
            filled(*[1.5] * (me + 1)),
            filled(*([1.5] * 4 if me == 1 else [0] * 4)),
            filled(1, 1, 2, 2),
            filled(1, 2, 0, 0),
            filled(2, 2, 4, 4),
            filled(1, 1, 2, 2),
            filled(1.5, 1.5, 1.5, 1.5),
            "RuntimeError",
        ]


def test_sparse_tensors_are_added_up() -> None:
    def rank(me: int) -> Any:
        places = torch.tensor([[0, me + 1]])
        x = torch.sparse_coo_tensor(
            places, torch.ones(2, 2), (4, 2), check_invariants=True
        )
        total = hvd.synchronize(hvd.sparse_allreduce_async(x, "x", hvd.Sum))
        mean = hvd.sparse_allreduce_async(x, "y")()
        return (
            total.to_dense()[:, 0].tolist(),
            hvd.allreduce(x).to_dense().equal(mean.to_dense()),
            mean.to_dense()[:, 1].tolist(),
        )

    assert results(2, rank) == [([2, 1, 1, 0], True, [1, 0.5, 0.5, 0])] * 2


def test_program_goes_backward_from_each_result_of_a_grouped_call() -> None:
    def rank(me: int) -> Any:
        def gradients(call: Any) -> list[Any]:
            inputs = [torch.full((2,), float(i)).requires_grad_() for i in range(3)] + [
                torch.tensor([me, me])
            ]
            for i, result in enumerate(call(inputs)[:3]):
                (result * (i + 1) * (me + 1)).sum().backward()
            return [tensor.grad.tolist() for tensor in inputs[:3]]

        return [
            gradients(lambda inputs: hvd.grouped_allreduce(inputs, op=hvd.Sum)),
            gradients(hvd.grouped_allgather),
            gradients(lambda inputs: hvd.grouped_reducescatter(inputs, op=hvd.Sum)),
        ]

    assert (
        results(2, rank)
        == [
            [
                [[3.0, 3.0], [6.0, 6.0], [9.0, 9.0]],
                [[1.5, 1.5], [3.0, 3.0], [4.5, 4.5]],
                [[2.0, 4.0], [4.0, 8.0], [6.0, 12.0]],
            ]
        ]
        * 2
    )


def test_gradient_of_alltoall_is_that_of_the_rows_that_came() -> None:
    """Whatever the program has done to the numbers of rows since."""

    def rank(me: int) -> Any:
        x = torch.ones(3).requires_grad_()
        rows, received = hvd.alltoall(x, [1, 2])
        received.zero_()
        for _ in range(2):
            (rows * (me + 1)).sum().backward()
        return x.grad.tolist()

    assert results(2, rank) == [[2.0, 4.0, 4.0]] * 2


def test_adasum_counts_what_gradients_have_in_common_once() -> None:
    def rank(me: int) -> Any:
        equal = hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Adasum)
        axes = torch.zeros(4)
        axes[me] = me + 1.0
        crossed = hvd.allreduce(axes, op=hvd.Adasum)
        nothing = hvd.allreduce(torch.zeros(2), op=hvd.Adasum)
        # (1 - 1/2) a + (1 - 1/4) b of a = (1, 0) and b = (1, 1), and so once more.
        pair = torch.tensor([1.0, float(me % 2)], dtype=torch.float64)
        mixed = hvd.allreduce(pair, op=hvd.Adasum)
        return [one.tolist() for one in (equal, crossed, nothing, mixed)]

    for found in results(4, rank):
        assert found == [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0], [1.25, 0.75]]


def test_adasum_takes_a_rank_that_has_joined_for_zeros() -> None:
    def rank(me: int) -> Any:
        found = None
        if me == 1:
            handle = hvd.allreduce_async(torch.ones(3))
            x = torch.tensor([1.0, -2.0, 3.0])
            found = hvd.allreduce(x, op=hvd.Adasum, postscale_factor=2).tolist()
            hvd.synchronize(handle)
        hvd.join()
        return found, hvd.allreduce(torch.tensor(1.0 * me)).item()

    assert results(2, rank) == [(None, 0.5), ([2.0, -4.0, 6.0], 0.5)]


def test_adasum_refuses_a_number_of_ranks_that_is_no_power_of_two() -> None:
    def rank(me: int) -> Any:
        return error_of(lambda: hvd.allreduce(torch.ones(2), op=hvd.Adasum))

    assert (
        results(3, rank)
        == [
            (
                "NotImplementedError",
                "Adasum combines ranks in pairs, so it needs a power of two of them, "
                "but the process set has 3. Use op=Sum or op=Average.",
            )
        ]
        * 3
    )


def test_a_rank_that_dies_lets_the_others_calls_fail() -> None:
    def rank(me: int) -> Any:
        hvd.init()
        hvd.allreduce(torch.ones(1))
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        waiting = hvd.allreduce_async(torch.ones(1), name="x")
        first = error_of(lambda: hvd.allreduce(torch.ones(1)))
        return first, error_of(waiting.wait)[0], error_of(hvd.barrier)[0]

    ended = start(3, rank)

    for one in (ended[0], ended[2]):
        first, second, third = one.value
        assert first[0] == second == third == "HorovodInternalError"
        assert "Instance 1 has ended" in first[1]
    assert ended[1].code == -signal.SIGKILL


def test_shutdown_fails_what_is_under_way_on_all_ranks_and_init_begins_anew() -> None:
    def rank(me: int) -> Any:
        hvd.init()
        handle = hvd.allreduce_async(torch.ones(1), name=f"of rank {me}")
        if me == 0:
            hvd.shutdown()
        kind = error_of(handle.wait)[0]
        hvd.shutdown()
        assert not hvd.is_initialized()
        before = error_of(hvd.rank)
        hvd.init()
        hvd.init()
        return kind, before, hvd.allreduce(torch.ones(1) * me, op=hvd.Sum).item()

    ended = start(3, rank)

    assert [one.error for one in ended] == [None] * 3
    assert [one.value for one in ended] == [
        (
            "HorovodInternalError",
            (
                "NotInitializedError",
                "Horovod has not been initialized; use hvd.init() before any other "
                "call of it.",
            ),
            3.0,
        )
    ] * 3


def test_a_forked_child_takes_no_part() -> None:
    def rank(me: int) -> Any:
        hvd.allreduce(torch.ones(1))
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            kind, _ = error_of(lambda: hvd.allreduce_async(torch.ones(1)))
            os.write(write, kind.encode())
            os._exit(0)
        os.waitpid(child, 0)
        return os.read(read, 100).decode(), hvd.allreduce(torch.ones(1)).item()

    assert results(2, rank) == [("HorovodInternalError", 1.0)] * 2


def test_ranks_that_wait_in_different_calls_are_named_and_time_out() -> None:
    def rank(me: int) -> Any:
        # The ranks need real time to begin and to exchange requests. So a call gets
        # older only by each look at its age.
        os.environ.update(POPDIST_STALL_TIMEOUT="200", POPDIST_TIMEOUT="1000")
        seconds = itertools.count(step=50)
        for module in (calls, stall_watch):
            module.monotonic = lambda: float(next(seconds))  # type: ignore[attr-defined]
        hvd.init()
        return error_of(lambda: hvd.allreduce(torch.ones(1), name=f"of rank {me}"))

    ended = start(2, rank)

    kinds = [one.value[0] for one in ended]
    texts = [one.value[1] for one in ended]
    assert kinds == ["HorovodInternalError"] * 2
    assert any(
        "for ranks" in text and "which make other calls" in text for text in texts
    )
    assert any(
        f"horovod: rank {me} has waited 200 s in allreduce 'allreduce.of rank {me}' "
        f"for ranks {1 - me}, which make other calls" in one.stderr
        for me, one in enumerate(ended)
    )


@pytest.mark.parametrize(
    "name",
    [
        "allgather",
        "allgather_async",
        "allreduce",
        "allreduce_",
        "allreduce_async",
        "allreduce_async_",
        "reducescatter",
        "reducescatter_async",
    ],
)
def test_a_call_on_one_tensor_has_the_arguments_of_the_grouped_one(name: str) -> None:
    single, grouped = getattr(hvd, name), getattr(hvd, f"grouped_{name}")
    parameters = list(inspect.signature(single).parameters.values())
    others = list(inspect.signature(grouped).parameters.values())[1:]

    assert parameters[0].name == "tensor"
    assert parameters[1:] == others
    assert single.__name__ == name
    assert "grouped_" not in single.__doc__
    assert pickle.loads(pickle.dumps(single)) is single


_REDUCED = "average, name, op, prescale_factor, postscale_factor, process_set"


@pytest.mark.parametrize(
    ("name", "arguments", "doc"),
    [
        ("grouped_allreduce_", f"tensors, {_REDUCED}", "Do what grouped_allreduce()"),
        ("grouped_allreduce_async", f"tensors, {_REDUCED}", "Begin what grouped_all"),
        ("allreduce_async_", f"tensor, {_REDUCED}", "Begin what allreduce_() does"),
        ("broadcast_", "tensor, root_rank, name, process_set", "Do what broadcast()"),
        ("broadcast_async", "tensor, root_rank, name, process_set", "Begin what broad"),
        ("broadcast_async_", "tensor, root_rank, name, process_set", "Begin what broa"),
    ],
)
def test_variants_of_a_call_have_its_arguments(
    name: str, arguments: str, doc: str
) -> None:
    call = getattr(hvd, name)

    assert ", ".join(inspect.signature(call).parameters) == arguments
    assert call.__name__ == name
    assert call.__doc__.startswith(doc)
    assert pickle.loads(pickle.dumps(call)) is call
