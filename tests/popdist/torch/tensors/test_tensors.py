"""Calls of an engine group on torch tensors, members being forks of the test."""

from typing import Any

import pytest
import torch
from torch import Tensor

from popdist.engine.group import Group
from popdist.torch import tensors
from tests.popdist.engine.members import Me, group_of, results, run

pytestmark = pytest.mark.usefixtures("each_transport")

# Members are forks: a thread of OpenMP would not be in them.
torch.set_num_threads(1)

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]


def equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def test_every_dtype_is_reduced_as_torch_adds_it_up() -> None:
    def member(me: Me) -> Any:
        group, wrong = me.join(), []
        for dtype in [*FLOATS, *INTEGERS]:
            x = (torch.arange(7) % 5 + me.rank).to(dtype)
            everyone = torch.stack(
                [(torch.arange(7) % 5 + i).to(dtype) for i in range(3)]
            )
            for op, expected in (
                ("sum", everyone.sum(0).to(dtype)),
                ("min", everyone.amin(0)),
                ("max", everyone.amax(0)),
                ("prod", everyone.prod(0).to(dtype)),
            ):
                got = x.clone()
                tensors.all_reduce(group, [got], op)
                if not equal(got, expected):
                    wrong.append((dtype, op, got, expected))
        half = torch.tensor([1.0, me.rank], dtype=torch.bfloat16)
        tensors.all_reduce(group, [half], "mean")
        flags = torch.tensor([me.rank == 1, False])
        tensors.all_reduce(group, [flags], "max")
        return wrong, half.tolist(), flags.tolist()

    assert results(3, member) == [([], [1, 1], [True, False])] * 3


def test_lists_strides_and_tied_tensors_are_reduced_as_they_are() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        square = torch.arange(9.0).reshape(3, 3)
        turned, tied = square.clone().t(), torch.ones(3, requires_grad=True)
        every_other = torch.zeros(6)
        every_other[::2] = me.rank + 1.0
        scalar, empty = torch.tensor(me.rank), torch.empty(0)
        tensors.all_reduce(group, [turned, tied, tied, every_other[::2], scalar, empty])
        out = [torch.empty(3, 3).t()]
        tensors.all_reduce(group, [square], "mean", out=out)
        whole = torch.arange(6.0)
        # The result is written over a part of what is read.
        tensors.all_reduce(group, [whole[:4]], out=[whole[2:]])
        return (
            torch.equal(turned, 3 * square.t()),
            tied.tolist(),
            every_other.tolist(),
            scalar.item(),
            torch.equal(out[0], square),
            whole.tolist(),
        )

    expected = (True, [3, 3, 3], [6, 0, 6, 0, 6, 0], 3, True, [0, 1, 0, 3, 6, 9])
    assert results(3, member) == [expected] * 3


def test_replicas_give_a_tensor_each() -> None:
    def member(me: Me) -> Any:
        group = me.join(replicas=[2, 1])
        mine = [torch.full((4,), 10.0 * me.rank + i) for i in range(2 - me.rank)]
        parts = torch.empty(3 * (2 - me.rank))
        tensors.reduce_scatter(
            group, [torch.arange(9.0) + one[0] for one in mine], parts
        )
        total = tensors.reduce(group, mine, root=2, out=torch.empty(4))
        tensors.all_reduce(group, [mine])
        return (
            [one.tolist() for one in mine],
            parts.tolist(),
            None if total is None else total.tolist(),
        )

    all_of_it = [11 + 3.0 * i for i in range(9)]
    assert results(2, member) == [
        ([[11.0] * 4] * 2, all_of_it[:6], None),
        ([[11.0] * 4], all_of_it[6:], [11.0] * 4),
    ]


def test_every_dtype_is_handed_on_bit_by_bit() -> None:
    def member(me: Me) -> Any:
        group, wrong = me.join(), []
        for dtype in [*FLOATS, *INTEGERS, *COMPLEX, torch.bool, torch.float8_e5m2]:
            ours = [(torch.arange(6) % 2 + i).to(dtype) for i in range(3)]
            mine = ours[me.rank]
            expected = torch.cat(ours).view(torch.uint8)
            whole = torch.empty(18, dtype=dtype)
            tensors.all_gather(group, mine, whole)
            apart = [torch.empty(6, dtype=dtype) for _ in ours]
            tensors.all_gather(group, mine, apart)
            given = mine.clone()
            tensors.broadcast(group, [given], 2)
            exchanged = torch.empty(6, dtype=dtype)
            tensors.all_to_all(group, mine, exchanged)
            parts = [one[2 * me.rank : 2 * me.rank + 2] for one in ours]
            for name, got, right in (
                ("all_gather", whole, expected),
                ("all_gather list", torch.cat(apart), expected),
                ("broadcast", given, ours[2].view(torch.uint8)),
                ("all_to_all", exchanged, torch.cat(parts).view(torch.uint8)),
            ):
                if not torch.equal(got.view(torch.uint8), right):
                    wrong.append((dtype, name))
        return wrong

    assert results(3, member) == [[]] * 3


def test_parts_and_shapes_may_differ() -> None:
    def member(me: Me) -> Any:
        group, rank = me.join(), me.rank
        # Member i has i + j + 1 numbers for member j.
        sources = [torch.full((rank + j + 1,), 10 * rank + j) for j in range(3)]
        outs = [torch.empty(i + rank + 1, dtype=torch.int64) for i in range(3)]
        tensors.all_to_all_parts(group, sources, outs)
        varied = tensors.all_gather_varied(
            group,
            [torch.ones(2, 1), torch.tensor(True), torch.empty(0, 3).half()][rank],
        )
        root = [torch.empty(3), torch.empty(3), torch.empty(3)] if rank == 1 else None
        gathered = tensors.gather(group, torch.full((3,), float(rank)), root, 1)
        row = torch.empty(2)
        tensors.scatter(
            group, torch.arange(6.0) if rank == 2 else None, row, 2, async_op=True
        ).wait()
        return (
            [out.tolist() for out in outs],
            [(one.dtype, tuple(one.shape)) for one in varied],
            gathered and [one.tolist() for one in gathered],
            row.tolist(),
        )

    shapes = [(torch.float32, (2, 1)), (torch.bool, ()), (torch.float16, (0, 3))]
    assert results(3, member) == [
        (
            [[10 * i + rank] * (i + rank + 1) for i in range(3)],
            shapes,
            [[0.0] * 3, [1.0] * 3, [2.0] * 3] if rank == 1 else None,
            [2.0 * rank, 2.0 * rank + 1],
        )
        for rank in range(3)
    ]


def test_results_may_lie_in_what_is_read() -> None:
    def member(me: Me) -> Any:
        group, rank = me.join(), me.rank
        whole = torch.full((4,), -1)
        whole[2 * rank : 2 * rank + 2] = rank
        tensors.all_gather(group, whole[2 * rank : 2 * rank + 2], whole)
        shifted = torch.tensor([rank, rank, -1, -1, -1])
        tensors.all_gather(group, shifted[:2], shifted[1:])
        exchanged = torch.tensor([10 * rank, 10 * rank + 1])
        tensors.all_to_all(group, exchanged, exchanged)
        scattered = torch.arange(4)
        tensors.reduce_scatter(group, scattered, scattered[1:3])
        return (
            whole.tolist(),
            shifted.tolist(),
            exchanged.tolist(),
            scattered[1:3].tolist(),
        )

    assert results(2, member) == [
        ([0, 0, 1, 1], [rank, 0, 0, 1, 1], [rank, 10 + rank], [4 * rank, 4 * rank + 2])
        for rank in range(2)
    ]


def test_calls_run_beside_the_program_and_call_back_in_order() -> None:
    def member(me: Me) -> Any:
        group, seen = me.join(), []
        x = [torch.ones(5) for _ in range(4)]
        handles = [
            tensors.all_reduce(group, [one], async_op=True, name=f"x{i}")
            for i, one in enumerate(x)
        ]
        for i, handle in enumerate(handles):
            handle.add_done_callback(lambda done, i=i: seen.append((i, done.result())))
        tensors.barrier(group)
        return [(i, result[0].tolist()) for i, result in seen]

    expected = [(i, [2.0] * 5) for i in range(4)]
    assert results(2, member) == [expected] * 2


def alone() -> Group:
    return group_of("alone", 0, 1)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda g: tensors.all_reduce(g, [torch.ones(2, dtype=torch.complex64)]),
            TypeError,
            "The tensor's dtype is torch.complex64, but a reduction takes float32",
        ),
        (
            lambda g: tensors.all_reduce(g, [torch.eye(2).to_sparse()]),
            TypeError,
            "The tensor's layout is torch.sparse_coo, but only dense tensors",
        ),
        (
            lambda g: tensors.all_reduce(g, [torch.empty(2, device="meta")]),
            ValueError,
            "The tensor is on meta, but popdist exchanges tensors in the CPU's memory",
        ),
        (
            lambda g: tensors.all_reduce(g, [torch.ones(2)], "average"),
            ValueError,
            "The reduction is 'average', but must be sum, min, max, prod, mean.",
        ),
        (
            lambda g: tensors.all_reduce(g, [torch.ones(2)], out=[torch.ones(3)]),
            ValueError,
            r"of shape \(3,\), and another torch.float32 of shape \(2,\), but they",
        ),
        (
            lambda g: tensors.all_gather(g, torch.ones(2), torch.ones(3)),
            ValueError,
            "The whole has 3 elements of torch.float32, but 1 parts of 2",
        ),
        (
            lambda g: tensors.all_to_all_parts(g, [], []),
            ValueError,
            "0 tensors are given and 0 to write to, but both must be 1",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    call: Any, error: type[Exception], text: str
) -> None:
    with alone() as group, pytest.raises(error, match=text):
        call(group)


def test_wrong_sizes_of_parts_end_the_call_on_all_members() -> None:
    def member(me: Me) -> Any:
        sources = [torch.ones(2), torch.ones(2)]
        outs = [torch.ones(2), torch.ones(2 + me.rank)]
        tensors.all_to_all_parts(me.join(), sources, outs)

    texts = [str(ended.error) for ended in run(2, member)]
    assert "out has 12 bytes for what member 1 sends, but it sends 8." in texts[1]
    assert "Instance 1 failed in all_to_all, which ended it for all" in texts[0]
