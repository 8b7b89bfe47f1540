"""torch.distributed over the engine: every operation, against what torch promises."""

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from conftest import wait_for

from popdist.session import STATE
from popdist.settings import Settings
from tests.popdist.torch.distributed import ends_of, on_all

OP = dist.ReduceOp

# torch has newer names for some of what its users call.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


ONE = torch.ones(1)
FLOAT8 = torch.ones(2).to(torch.float8_e4m3fn)
# torch declares no other way to make it.
HALVED_SUM: Any = dist._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]


def world() -> Any:
    return dist.group.WORLD


def test_all_reductions(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        found: dict[str, Any] = {}
        for op in (OP.SUM, OP.AVG, OP.PRODUCT, OP.MIN, OP.MAX):
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
                x = torch.tensor([rank + 1, 2], dtype=dtype)
                dist.all_reduce(x, op)
                found[f"{op.name} {dtype}"] = x.tolist()
        for op in (OP.BAND, OP.BOR, OP.BXOR):
            x = torch.tensor([3 - rank, 5])
            dist.all_reduce(x, op)
            found[op.name] = x.tolist()
        x = torch.ones(2)
        dist.all_reduce(x, OP.PREMUL_SUM(2.5))
        found["PREMUL_SUM"] = x.tolist()
        z = torch.tensor([1 + 2j]) * rank
        dist.all_reduce(z)
        found["complex"] = z.tolist()
        tilted = torch.arange(4.0).view(2, 2).t()
        dist.all_reduce(tilted)
        found["strided"] = tilted.tolist()
        one = torch.tensor([rank + 1.0])
        dist.reduce(one, 1)
        found["reduce"] = one.tolist() if rank == 1 else [6]
        rows = torch.eye(3)[rank : rank + 1].to_sparse()
        dist.all_reduce(rows)
        found["sparse"] = rows.to_dense().tolist()
        xs = [torch.tensor([float(rank)]), torch.tensor([1.0, 2.0])]
        dist.all_reduce_coalesced(xs)
        found["coalesced"] = [x.tolist() for x in xs]
        # As if each of them had a member.
        pair = [torch.tensor([2.0 * rank]), torch.tensor([2.0 * rank + 1])]
        world().allreduce(pair).wait()
        found["several"] = [x.tolist() for x in pair]
        return found

    found = on_all(tmp_path, 3, member)
    expected: dict[str, Any] = {}
    for name, values in (
        ("SUM", [6, 6]),
        ("AVG", [2, 2]),
        ("PRODUCT", [6, 8]),
        ("MIN", [1, 2]),
        ("MAX", [3, 2]),
    ):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
            expected[f"{name} {dtype}"] = values
    expected |= {
        "BAND": [0, 5],
        "BOR": [3, 5],
        "BXOR": [0, 5],
        "PREMUL_SUM": [7.5, 7.5],
        "complex": [3 + 6j],
        "strided": [[0, 6], [3, 9]],
        "reduce": [6],
        "sparse": torch.eye(3).sum(0, keepdim=True).tolist(),
        "coalesced": [[3], [3, 6]],
        "several": [[15], [15]],
    }
    assert found == [expected] * 3


def test_all_exchanges(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        found: dict[str, Any] = {}
        mine = torch.tensor([rank, 10 * rank], dtype=torch.bfloat16)
        parts = [torch.empty(2, dtype=torch.bfloat16) for _ in range(size)]
        dist.all_gather(parts, mine)
        found["all_gather"] = [p.tolist() for p in parts]
        whole = torch.empty(2 * size, dtype=torch.bfloat16)
        dist.all_gather_into_tensor(whole, mine)
        found["into_tensor"] = whole.tolist()
        # Sizes may differ.
        uneven = [torch.empty(i) for i in range(size)]
        dist.all_gather(uneven, torch.full((rank,), float(rank)))
        found["uneven"] = [u.tolist() for u in uneven]
        out = torch.empty(2)
        dist.reduce_scatter_tensor(out, torch.arange(2.0 * size))
        found["reduce_scatter"] = out.tolist() == [6.0 * rank, 6.0 * rank + 3]
        out = torch.empty(rank)
        dist.reduce_scatter(out, [torch.full((i,), 1.0) for i in range(size)])
        found["reduce_scatter uneven"] = out.tolist() == [3.0] * rank
        flags = torch.empty(1, dtype=torch.int32)
        given = [torch.tensor([1 << i], dtype=torch.int32) for i in range(size)]
        dist.reduce_scatter(flags, given, OP.BOR)
        found["reduce_scatter BOR"] = flags.item() == 1 << rank
        x = torch.full((3,), rank)
        dist.broadcast(x, 2)
        found["broadcast"] = x.tolist()
        gathered = [torch.empty(2) for _ in range(size)] if rank == 1 else None
        dist.gather(mine.float(), gathered, 1)
        found["gather"] = not gathered or [p.tolist() for p in gathered]
        part = torch.empty(2)
        scattered = [torch.full((2,), float(i)) for i in range(size)]
        dist.scatter(part, scattered if rank == 2 else None, 2)
        found["scatter"] = part.tolist() == [rank, rank]
        out = torch.empty(size)
        dist.all_to_all_single(out, torch.arange(3.0) + 10 * rank)
        found["all_to_all_single"] = out.tolist() == [rank, 10 + rank, 20 + rank]
        # Member i has i + 1 elements for each.
        out = torch.empty(6)
        dist.all_to_all_single(
            out, torch.full((3 * (rank + 1),), float(rank)), [1, 2, 3], [rank + 1] * 3
        )
        found["split"] = out.tolist()
        outs = [torch.empty(2) for _ in range(size)]
        dist.all_to_all(outs, [torch.full((2,), 10.0 * rank + i) for i in range(size)])
        found["all_to_all"] = [o[0].item() for o in outs] == [
            10.0 * i + rank for i in range(size)
        ]
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        found["objects"] = objects
        some: list[Any] = ["a", 2] if rank == 0 else [None, None]
        dist.broadcast_object_list(some, 0)
        found["object list"] = some
        return found

    ranks = range(3)
    assert on_all(tmp_path, 3, member) == [
        {
            "all_gather": [[i, 10 * i] for i in ranks],
            "into_tensor": [0, 0, 1, 10, 2, 20],
            "uneven": [[], [1], [2, 2]],
            "reduce_scatter": True,
            "reduce_scatter uneven": True,
            "reduce_scatter BOR": True,
            "broadcast": [2, 2, 2],
            "gather": [[i, 10 * i] for i in ranks] if rank == 1 else True,
            "scatter": True,
            "all_to_all_single": True,
            "split": [0, 1, 1, 2, 2, 2],
            "all_to_all": True,
            "objects": [{"rank": i} for i in ranks],
            "object list": ["a", 2],
        }
        for rank in ranks
    ]


def test_messages_are_matched_by_member_and_tag(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        found: dict[str, Any] = {}
        right, left = (rank + 1) % size, (rank - 1) % size
        # All receive before any of them sends.
        got = torch.empty(100_000)
        ops = [
            dist.P2POp(dist.irecv, got, left),
            dist.P2POp(dist.isend, torch.full((100_000,), float(rank)), right),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        found["ring"] = got.unique().tolist() == [left]
        if rank == 0:
            works = [dist.isend(torch.tensor([tag]), 1, tag=tag) for tag in (1, 2, 3)]
            for work in works:
                work.wait()
            dist.send(torch.tensor([5.0]), 2)
        elif rank == 1:
            values = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
            works = [
                dist.irecv(value, 0, tag=tag)
                for value, tag in zip(values, (3, 1, 2), strict=True)
            ]
            for work in works:
                work.wait()
            found["tags"] = [value.item() for value in values]
            dist.send(torch.tensor([6.0]), 2)
        else:
            first, second = torch.zeros(1), torch.zeros(1)
            sources = [dist.recv(first), dist.recv(second)]
            found["any"] = sorted(
                zip(sources, (first.item(), second.item()), strict=True)
            )
        dist.barrier()
        return found

    assert on_all(tmp_path, 3, member) == [
        {"ring": True},
        {"ring": True, "tags": [3, 1, 2]},
        {"ring": True, "any": [(0, 5.0), (1, 6.0)]},
    ]


def test_calls_may_be_under_way_beside_the_program(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        xs = [torch.tensor([i + rank]) for i in range(200)]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        futures = [work.get_future() for work in works]
        chained = futures[-1].then(lambda done: done.value()[0].item())
        sync = torch.ones(1)
        dist.all_reduce(sync)
        for work in works:
            work.wait()
        with dist._coalescing_manager(async_ops=True) as several:
            dist.all_reduce(first := torch.ones(2))
            dist.all_reduce(second := torch.ones(3))
        several.wait()
        return (
            [x.item() for x in xs] == [2 * i + 1 for i in range(200)],
            futures[7].value()[0].item(),
            chained.wait(),
            sync.item(),
            works[0].is_completed() and works[0].is_success(),
            works[3].result()[0].item(),
            [first.tolist(), second.tolist()],
            works[0].exception(),
        )

    expected = (True, 15, 399, 2, True, 7, [[2, 2], [2, 2, 2]], None)
    assert on_all(tmp_path, 2, member) == [expected] * 2


def test_small_asynchronous_calls_are_made_in_order_whoever_waits(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        given = [torch.full((1 + i,), float(rank + i)) for i in range(40)]
        works = [dist.all_reduce(x, async_op=True) for x in given]
        # A work and a tensor that the program drops, and a call that returns its sum.
        dist.all_reduce(torch.ones(1000), async_op=True)
        between = torch.ones(3, dtype=torch.bfloat16)
        dist.all_reduce(between)
        for work in reversed(works) if rank else works:
            assert work is not None
            work.wait()
        reduce: Any = functional_collectives.all_reduce
        functional = [reduce(torch.full((9,), i), "sum", world()) for i in range(3)]
        maximum = dist.all_reduce(given[0], OP.MAX, async_op=True)
        assert maximum is not None
        maximum.get_future().wait()
        return (
            [x.unique().tolist() for x in given[1:]],
            between.tolist(),
            [x.unique().tolist() for x in functional],
            given[0].tolist(),
        )

    sums = [[2.0 * i + 1] for i in range(1, 40)]
    expected = sums, [2.0] * 3, [[0], [2], [4]], [1.0]
    assert on_all(tmp_path, 2, member) == [expected] * 2


def test_new_groups_are_of_their_members(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
        mine = odd if rank % 2 else even
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=mine)
        y = torch.tensor([float(rank)])
        dist.broadcast(y, 2 + rank % 2, group=mine)
        dist.destroy_process_group(mine)
        alone, _ = dist.new_subgroups(1)
        dist.all_reduce(z := torch.ones(1), group=alone)
        return x.item(), y.item(), z.item()

    assert on_all(tmp_path, 4, member) == [(2, 2, 1), (4, 3, 1), (2, 2, 1), (4, 3, 1)]


SPARSE_INTEGERS = torch.eye(1, dtype=torch.int64).to_sparse()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: world().allreduce([]), "requires non-empty tensor list"),
        (
            lambda: world().allreduce([torch.ones(1), torch.ones(1).double()]),
            "invalid tensor type: torch.float64 and torch.float32",
        ),
        (
            lambda: world().allreduce([torch.ones(1), torch.ones(2)]),
            r"invalid tensor size: \(2,\) and \(1,\)",
        ),
        (
            lambda: dist.all_reduce(torch.eye(2).to_sparse(), OP.MAX),
            "unsupported reduction operation",
        ),
        (lambda: dist.all_reduce(torch.ones(1), OP.BAND), "BAND is for integers"),
        (
            lambda: world().allreduce(torch.ones(1) * 1j, OP.PRODUCT),
            "PRODUCT is for real numbers, but the tensor is torch.complex64",
        ),
        (lambda: dist.reduce(torch.ones(1) * 1j, 0, OP.MAX), "MAX is for real numbers"),
        (
            lambda: dist.reduce_scatter(
                torch.ones(1) * 1j, [torch.ones(1) * 1j], OP.MIN
            ),
            "MIN is for real numbers",
        ),
        (
            lambda: world().allreduce_coalesced([torch.ones(1), SPARSE_INTEGERS]),
            "invalid tensor layout at index 1",
        ),
        (lambda: world().broadcast(torch.ones(1), root=7), "invalid root rank: 7"),
        (
            lambda: world().allgather([[torch.ones(1)] * 2], [torch.ones(1)]),
            "invalid output tensor list at index 0: 2 tensors for 1",
        ),
        (
            lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2)),
            "output tensor size must be equal to world_size times input",
        ),
        (
            lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(2)),
            "input tensor must be the same size as output size times world size",
        ),
        (
            lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [1], [1]),
            "Split sizes doesn't match total dim 0 size",
        ),
        (
            lambda: dist.all_to_all_single(torch.ones(2, 3).t(), torch.ones(3, 2)),
            "Tensors must be contiguous",
        ),
        (lambda: world().send([torch.ones(1)], 0, 0), "invalid rank: 0 is no other"),
        *(
            (call, "several of its elements are one place in memory")
            for call in (
                lambda: dist.all_reduce(torch.ones(1).expand(4)),
                lambda: dist.all_reduce(torch.ones(1).int().expand(4), op=OP.BAND),
                lambda: dist.reduce(torch.ones(1).expand(4), 0),
                lambda: dist.all_gather_into_tensor(ONE.expand(2), torch.ones(2)),
                lambda: dist.all_gather([ONE.expand(2)], torch.ones(2)),
                lambda: dist.gather(torch.ones(2), [ONE.expand(2)]),
                lambda: dist.scatter(ONE.expand(2), [torch.ones(2)]),
                lambda: dist.reduce_scatter_tensor(ONE.expand(2), torch.ones(2)),
                lambda: dist.reduce_scatter(ONE.expand(2), [torch.ones(2)]),
                lambda: dist.all_to_all([ONE.expand(2)], [torch.ones(2)]),
                lambda: world().recv_anysource([ONE.expand(2)]),
            )
        ),
        (
            lambda: dist.all_reduce(torch.ones(2).int(), op=HALVED_SUM),
            "PREMUL_SUM cannot multiply torch.int32 by 0.5",
        ),
        (
            lambda: dist.reduce_scatter_tensor(FLOAT8, FLOAT8),
            "torch.float8_e4m3fn, of which there are no sums",
        ),
        (
            lambda: dist.reduce_scatter_tensor(ONE, torch.ones(1, device="meta")),
            "is on meta, but popdist exchanges tensors in the CPU's memory",
        ),
        (
            lambda: dist.reduce_scatter_tensor(ONE, ONE.to_sparse()),
            "layout is torch.sparse_coo, but only dense tensors",
        ),
        (
            lambda: dist.all_reduce(ONE.to(torch.complex64).to_sparse()),
            "only real ones in the layout torch.sparse_coo are added up",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_exchanged(
    call: Any, text: str
) -> None:
    dist.init_process_group("popdist", store=dist.HashStore(), rank=0, world_size=1)
    try:
        # torch's groups raise the one or the other.
        with pytest.raises(RuntimeError, match=text) as refused:
            call()
        assert isinstance(refused.value, ValueError)
        dist.barrier()
    finally:
        dist.destroy_process_group()


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


def test_calls_that_have_not_begun_are_counted(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        counts = [world()._get_sequence_number_for_group()]
        works = []
        for x in (torch.ones(2), torch.ones(1 << 20)):
            if rank:
                # They cannot end before the other member has counted, too.
                works.append(world().allreduce([x]))
            counts.append(world()._get_sequence_number_for_group())
        for x in (torch.ones(2), torch.ones(1 << 20)):
            if not rank:
                works.append(world().allreduce([x]))
        for work in works:
            work.wait()
        dist.barrier()
        counts.append(world()._get_sequence_number_for_group())
        return counts

    assert on_all(tmp_path, 2, member) == [[0, 0, 0, 3], [0, 1, 2, 3]]


def test_a_member_that_does_not_come_is_named(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> None:
        if rank == 1:
            time.sleep(3)
        dist.all_reduce(torch.ones(1))

    texts = [str(e.error) for e in ends_of(tmp_path, 3, member, timeout=1)]
    assert "Instance 1 did not take its part in all_reduce (sum, oneshot)" in texts[0]
    assert "Here that is the timeout of init_process_group" in texts[0]
    assert all(text.startswith("popdist: ") for text in texts)


def test_a_member_that_dies_is_named(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> None:
        if rank == 1:
            raise SystemExit
        with pytest.raises(dist.DistBackendError, match="Instance 1 has ended"):
            world().allreduce([torch.ones(1)]).wait()
        with pytest.raises(dist.DistBackendError, match="Instance 1 ended before"):
            dist.recv(torch.ones(1), 1)

    ended = ends_of(tmp_path, 3, member, timeout=40)
    assert [type(e.error) for e in ended] == [type(None), SystemExit, type(None)]


def test_a_monitored_barrier_names_who_does_not_come(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> str:
        dist.monitored_barrier()
        if rank == 2:
            time.sleep(1)
            return ""
        with pytest.raises(dist.DistBackendError) as late:
            dist.monitored_barrier(timeout=timedelta(seconds=0.3))
        return str(late.value)

    texts = on_all(tmp_path, 3, member)
    assert texts[0] == "popdist: Rank 2 failed to pass monitoredBarrier in 300 ms."
    assert "Rank 1 successfully reached monitoredBarrier, but received" in texts[1]


def test_a_monitored_barrier_follows_one_that_has_failed(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> str:
        # Member 2 comes when member 0 has given up.
        if rank == 2:
            dist.recv(torch.ones(1), 0)
        with pytest.raises(dist.DistBackendError) as failure:
            dist.monitored_barrier(timeout=timedelta(seconds=30 if rank else 0.3))
        if rank == 0:
            dist.send(torch.ones(1), 2)
        for _ in range(3):
            dist.monitored_barrier()
        return str(failure.value)

    received = (
        "successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0: it gave up, because rank 2 has not come."
    )
    assert on_all(tmp_path, 3, member) == [
        "popdist: Rank 2 failed to pass monitoredBarrier in 300 ms.",
        f"popdist: Rank 1 {received}",
        f"popdist: Rank 2 {received}",
    ]


def test_a_monitored_barrier_names_who_ends_in_it(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> None:
        if rank == 1:
            # What a member does first in its first barrier.
            dist.recv(torch.ones(1), 0)
            world().send([torch.ones(1)], 0, -2).wait()
            raise SystemExit
        if rank == 0:
            dist.send(torch.ones(1), 1)
            with pytest.raises(dist.DistBackendError, match="Rank 1 ended in monitor"):
                dist.monitored_barrier()
        else:
            with pytest.raises(dist.DistBackendError, match="Instance 1"):
                dist.recv(torch.ones(1), 1)
            dist.monitored_barrier()

    ended = ends_of(tmp_path, 3, member, timeout=1000)
    assert [type(e.error) for e in ended] == [type(None), SystemExit, type(None)]


def test_what_waits_for_a_message_ends_with_the_group(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> tuple[list[bool], list[str]]:
        # From a member that has sent something else, from another one, from any.
        x = torch.ones(1)
        dist.send(x, 1 - rank, tag=1) if rank else dist.recv(x, 1, tag=1)
        works: list[Any] = [dist.irecv(x, 1 - rank), dist.irecv(x, 2), dist.irecv(x)]
        dist.barrier()
        world().shutdown()
        # None may end before: that would be the error of the others.
        (tmp_path / f"left {rank}").touch()
        while len(list(tmp_path.glob("left *"))) < 3:
            time.sleep(0.01)
        errors = []
        for work in works:
            with pytest.raises(dist.DistBackendError) as failure:
                work.wait()
            errors.append(str(failure.value))
        threads = [one for one in threading.enumerate() if "popdist" in one.name]
        for thread in threads:
            thread.join(30)
        return [one.is_alive() for one in threads], errors

    def member_of_three(rank: int, size: int) -> Any:
        if rank < 2:
            return member(rank, size)
        dist.barrier()
        (tmp_path / f"left {rank}").touch()
        while len(list(tmp_path.glob("left *"))) < 3:
            time.sleep(0.01)
        return None

    found = on_all(tmp_path, 3, member_of_three)
    for alive, errors in found[:2]:
        assert not any(alive)
        assert errors == ["popdist: The process group was destroyed."] * 3


def test_what_others_keep_waiting_is_reported(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> None:
        x = torch.ones(2)
        calls = (
            lambda: dist.all_reduce(x),
            lambda: dist.all_reduce(x, async_op=True).wait(),
            dist.barrier,
            dist.monitored_barrier,
            lambda: torch.ops.popdist.all_reduce(x),
            lambda: dist.send(x, 0) if rank else dist.recv(x, 1),
            dist.new_group,
        )
        for number, call in enumerate(calls):
            begun = tmp_path / f"call {number}"
            if rank:
                wait_for(begun.exists, "rank 0")
                time.sleep(1)
            else:
                begun.touch()
            call()
            dist.barrier()

    STATE.__dict__["settings"] = Settings(stall=0.2)
    try:
        ended = ends_of(tmp_path, 2, member, timeout=1000)
    finally:
        del STATE.__dict__["settings"]
    waits = [
        line.split(" in ", 1)[-1]
        for line in ended[0].stderr.splitlines()
        if "has waited" in line
    ]
    assert [one.error for one in ended] == [None, None]
    for what in (
        "all_reduce (sum, oneshot) of 2 float32.",
        "barrier.",
        "monitored_barrier.",
        "recv of 8 bytes.",
    ):
        assert what in waits
    assert waits.count("all_reduce (sum, oneshot) of 2 float32.") == 3
    assert "to join the group of instances 0 and 1" in ended[0].stderr


def test_a_monitored_barrier_names_who_has_ended(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> str:
        if rank:
            raise SystemExit
        with pytest.raises(dist.DistBackendError) as late:
            dist.monitored_barrier(wait_all_ranks=True)
        with pytest.raises(dist.DistBackendError, match="Rank 0 timed out"):
            world().monitored_barrier(timedelta(0))
        return str(late.value)

    ended = ends_of(tmp_path, 3, member, timeout=20)
    assert str(ended[0].value).startswith("popdist: Ranks 1, 2 failed to pass")


def test_calls_take_a_root_and_a_timeout_of_their_own(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x, opts = torch.tensor([rank + 1.0]), dist.AllreduceOptions()
        second = x.clone()
        opts.timeout = timedelta(seconds=0.1)
        if rank == 0:
            opts.asyncOp = False
            with pytest.raises(dist.DistBackendError, match=r"waiting 0\.1 s for"):
                world().allreduce([x], opts)
            opts.asyncOp = True
            with pytest.raises(dist.DistBackendError, match=r"waiting 0\.1 s for"):
                world().allreduce([second], opts).wait()
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
            world().allreduce([x]).wait()
            world().allreduce([second]).wait()
        # The calls that nothing waited for are over, too, and ended no group.
        world().broadcast(y := torch.tensor([float(rank)]), 1).wait()
        world().reduce(y, 0, OP.MAX, timedelta(seconds=20)).wait()
        both = [torch.zeros(1), torch.zeros(1)] if rank == 1 else []
        gather = world().gather(both, y, 1, timeout=timedelta(seconds=20))
        gathered = gather.get_future().wait()
        calls = world()._get_sequence_number_for_group()
        dist.all_reduce(torch.ones(1))
        made = world()._get_sequence_number_for_group() - calls
        return [x.item(), second.item()], [one.item() for one in gathered], made

    expected = [([3, 3], [], 1), ([3, 3], [1, 1], 1)]
    assert on_all(tmp_path, 2, member) == expected


def test_torch_profiler_records_calls(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.ones(size)
        with torch.profiler.profile() as profile:
            dist.all_reduce(x)
            dist.broadcast(x, 0)
            dist.reduce_scatter_tensor(torch.empty(1), x)
            dist.all_reduce(x, async_op=True).wait()
        events = profile.events()
        return [e.name for e in events if e.name.startswith("popdist:")]

    expected = ["all_reduce", "broadcast", "reduce_scatter", "all_reduce"]
    # Not on_all(): the profiler writes to stderr.
    found = [end.value for end in ends_of(tmp_path, 2, member, timeout=40)]
    assert found == [[f"popdist:{name}" for name in expected]] * 2
