"""Calls of an engine group on torch tensors, members being forks of the test."""

from typing import Any

import pytest
import torch
from torch import Tensor

from popdist.engine.group import Group
from popdist.torch import tensors
from tests.popdist.engine.members import Me, group_of, results

pytestmark = pytest.mark.usefixtures("each_transport")

# Members are forks: a thread of OpenMP would not be in them.
torch.set_num_threads(1)

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


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
        # The result is written over a part of the source.
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
        apart = [torch.zeros(4) for _ in mine]
        tensors.all_reduce(group, [mine], out=[apart])
        tensors.all_reduce(group, [mine])
        return [one.tolist() for one in (*mine, *apart)]

    assert results(2, member) == [[[11.0] * 4] * 4, [[11.0] * 4] * 2]


def test_a_replicas_member_overwrites_the_others_tensors() -> None:
    def member(me: Me) -> Any:
        square = torch.full((2, 2), me.rank + 1j).t()
        tensors.broadcast(me.join(replicas=[2, 1]), [square, torch.empty(0)], 2)
        return square.tolist()

    assert results(2, member) == [[[1 + 1j] * 2] * 2] * 2


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
            lambda g: tensors.all_reduce(g, [torch.tensor(True)], "mean"),
            TypeError,
            "The mean of bool would not be a bool",
        ),
        (
            lambda g: tensors.all_reduce(g, [[torch.ones(2), torch.ones(2)]]),
            ValueError,
            "2 tensors are given, but this instance has 1 replicas",
        ),
        (
            lambda g: tensors.broadcast(g, [torch.ones(2)], 1),
            ValueError,
            "The root is member 1, but the group has members 0 to 0",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    call: Any, error: type[Exception], text: str
) -> None:
    with alone() as group, pytest.raises(error, match=text):
        call(group)
