"""Gathers and exchanges of torch.distributed, against what torch promises."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.popdist.torch.distributed import ends_of, on_all, world

OP = dist.ReduceOp
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    *(torch.complex64, torch.complex128),
)

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


def test_every_dtype_is_handed_on_bit_by_bit(tmp_path: Path) -> None:
    def wrong(rank: int, size: int, dtype: torch.dtype) -> list[str]:
        every = [(torch.arange(6) % 2 + i).to(dtype) for i in range(size)]
        own = every[rank]
        whole, exchanged = torch.empty(18, dtype=dtype), torch.empty(6, dtype=dtype)
        apart = [torch.empty(6, dtype=dtype) for _ in every]
        world().all_gather_single(whole, own).wait()
        world().allgather([apart], [own]).wait()
        world().broadcast(given := own.clone(), root=2).wait()
        world().all_to_all_single(exchanged, own).wait()
        parts = [one[2 * rank : 2 * rank + 2] for one in every]
        results = {
            "all_gather_single": (whole, torch.cat(every)),
            "allgather": (torch.cat(apart), torch.cat(every)),
            "broadcast": (given, every[2]),
            "all_to_all_single": (exchanged, torch.cat(parts)),
        }
        return [
            f"{name} of {dtype}"
            for name, (result, right) in results.items()
            if not torch.equal(result.view(torch.uint8), right.view(torch.uint8))
        ]

    def member(rank: int, size: int) -> list[str]:
        return [name for dtype in DTYPES for name in wrong(rank, size, dtype)]

    assert on_all(tmp_path, 3, member) == [[]] * 3


def test_results_may_lie_in_what_is_read(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        shifted = torch.tensor([rank, rank, -1, -1, -1])
        dist.all_gather_into_tensor(shifted[1:], shifted[:2])
        exchanged = torch.tensor([10 * rank, 10 * rank + 1])
        dist.all_to_all_single(exchanged, exchanged)
        scattered = torch.arange(4)
        dist.reduce_scatter_tensor(scattered[1:3], scattered)
        return shifted.tolist(), exchanged.tolist(), scattered[1:3].tolist()

    assert on_all(tmp_path, 2, member) == [
        ([rank, 0, 0, 1, 1], [rank, 10 + rank], [4 * rank, 4 * rank + 2])
        for rank in range(2)
    ]


def test_several_tensors_of_a_member_are_gathered_in_each_list(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        own = [torch.tensor([10 * rank]), torch.tensor([10 * rank + 1])]
        lists = [[torch.zeros(1).long() for _ in range(4)] for _ in own]
        world().allgather(lists, own).wait()
        one, two = torch.tensor([rank]), torch.tensor([rank, 7])
        both = [[torch.zeros_like(one), torch.zeros_like(two)] for _ in range(size)]
        world().allgather_coalesced(both, [one, two]).wait()
        return [[tensor.tolist() for tensor in tensors] for tensors in (*lists, *both)]

    gathered = [[0], [1], [10], [11]]
    both = [[[i], [i, 7]] for i in range(2)]
    assert on_all(tmp_path, 2, member) == [[gathered, gathered, *both]] * 2


def test_the_root_has_several_tensors_in_a_broadcast(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 1
        own = [torch.tensor([10 * rank + i]) for i in range(3)]
        world().broadcast(own, options).wait()
        return [tensor.item() for tensor in own]

    assert on_all(tmp_path, 2, member) == [[11, 11, 11]] * 2


def test_wrong_sizes_of_parts_end_the_call_on_all_members(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> None:
        outs = [torch.ones(2), torch.ones(2 + rank)]
        dist.all_to_all(outs, [torch.ones(2), torch.ones(2)])

    texts = [str(ended.error) for ended in ends_of(tmp_path, 2, member, 200)]
    assert "out has 12 bytes for what member 1 sends, but it sends 8." in texts[1]
    assert "Instance 1 failed in all_to_all, which ended it for all" in texts[0]
