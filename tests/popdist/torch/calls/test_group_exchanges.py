"""Gathers and exchanges of torch.distributed, against what torch promises."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.popdist.torch.distributed import on_all, world

OP = dist.ReduceOp

# torch has newer names for some of what its users call.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("each_transport"),
]


def test_all_gather(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        mine = torch.tensor([rank, 10 * rank], dtype=torch.bfloat16)
        parts = [torch.empty(2, dtype=torch.bfloat16) for _ in range(size)]
        dist.all_gather(parts, mine)
        whole = torch.empty(2 * size, dtype=torch.bfloat16)
        dist.all_gather_into_tensor(whole, mine)
        return [part.tolist() for part in parts], whole.tolist()

    expected = [[0, 0], [1, 10], [2, 20]], [0, 0, 1, 10, 2, 20]
    assert on_all(tmp_path, 3, member) == [expected] * 3


def test_parts_of_all_gather_differ_in_size(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        parts = [torch.empty(i) for i in range(size)]
        dist.all_gather(parts, torch.full((rank,), float(rank)))
        return [part.tolist() for part in parts]

    assert on_all(tmp_path, 3, member) == [[[], [1], [2, 2]]] * 3


def test_broadcast(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.full((3,), rank)
        dist.broadcast(x, 2)
        return x.tolist()

    assert on_all(tmp_path, 3, member) == [[2, 2, 2]] * 3


def test_gather_to_the_root(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        parts = [torch.empty(2) for _ in range(size)] if rank == 1 else None
        dist.gather(torch.tensor([rank, 10.0 * rank]), parts, 1)
        return parts and [part.tolist() for part in parts]

    expected = [None, [[0, 0], [1, 10], [2, 20]], None]
    assert on_all(tmp_path, 3, member) == expected


def test_scatter_from_the_root(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        part = torch.empty(2)
        parts = [torch.full((2,), float(i)) for i in range(size)]
        dist.scatter(part, parts if rank == 2 else None, 2)
        return part.tolist()

    assert on_all(tmp_path, 3, member) == [[0, 0], [1, 1], [2, 2]]


def test_all_to_all(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        out = torch.empty(size)
        dist.all_to_all_single(out, torch.arange(3.0) + 10 * rank)
        outs = [torch.empty(2) for _ in range(size)]
        dist.all_to_all(outs, [torch.full((2,), 10.0 * rank + i) for i in range(size)])
        return out.tolist(), [one.tolist() for one in outs]

    assert on_all(tmp_path, 3, member) == [
        ([0, 10, 20], [[0, 0], [10, 10], [20, 20]]),
        ([1, 11, 21], [[1, 1], [11, 11], [21, 21]]),
        ([2, 12, 22], [[2, 2], [12, 12], [22, 22]]),
    ]


def test_parts_of_all_to_all_differ_in_size(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        # Member i has i + 1 elements for each.
        out = torch.empty(6)
        dist.all_to_all_single(
            out, torch.full((3 * (rank + 1),), float(rank)), [1, 2, 3], [rank + 1] * 3
        )
        return out.tolist()

    assert on_all(tmp_path, 3, member) == [[0, 1, 1, 2, 2, 2]] * 3


def test_objects(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, {"rank": rank})
        broadcast: list[Any] = ["a", 2] if rank == 0 else [None, None]
        dist.broadcast_object_list(broadcast, 0)
        return gathered, broadcast

    expected = [{"rank": 0}, {"rank": 1}, {"rank": 2}], ["a", 2]
    assert on_all(tmp_path, 3, member) == [expected] * 3


def test_a_tensor_is_not_gathered_for_members_of_different_sizes(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        one, two = torch.ones(1), torch.ones(2)
        with pytest.raises(RuntimeError, match="invalid tensor size"):
            world().allgather([[one, two, one]], [torch.ones(1)])
        # Nothing was begun.
        dist.all_reduce(one)
        return one.item()

    assert on_all(tmp_path, 3, member) == [3, 3, 3]


def test_tensors_need_not_be_contiguous(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> list[list[int]]:
        def one(value: int) -> torch.Tensor:
            # Contiguous for torch, as every single element, though its stride is 3.
            return torch.full((4,), value).as_strided((1,), (3,))

        received = [one(0), one(0)]
        dist.all_to_all(received, [one(10 * rank), one(10 * rank + 1)])
        columns = torch.tensor([[7, 6], [3, 3], [5, 1], [1, 4]]).t() + 8 * rank
        found = [[int(x) for x in received]]
        for op in (OP.BAND, OP.BOR, OP.BXOR):
            out = torch.zeros(1, 4, dtype=torch.int64)
            dist.reduce_scatter_tensor(out, columns, op=op)
            found.append(out.flatten().tolist())
        return found

    assert on_all(tmp_path, 2, member) == [
        [[0, 10], [7, 3, 5, 1], [15, 11, 13, 9], [8, 8, 8, 8]],
        [[1, 11], [6, 3, 1, 4], [14, 11, 9, 12], [8, 8, 8, 8]],
    ]
