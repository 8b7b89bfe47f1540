"""Arguments that torch's own groups refuse are refused before any call begins."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import popdist.torch  # noqa: F401 (registers the backend)
from tests.popdist.torch.distributed import world

OP = dist.ReduceOp
ONE = torch.ones(1)
FLOAT8 = torch.ones(2).to(torch.float8_e4m3fn)
SPARSE_INTEGERS = torch.eye(1, dtype=torch.int64).to_sparse()
# torch declares no other way to make it.
HALVED_SUM: Any = dist._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]

# torch has newer names for some of what its users call.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


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
        (
            lambda: dist.all_to_all_single(torch.ones(2), torch.ones(3)),
            "not equal in size or data type: 3 and 2 elements",
        ),
        (lambda: world().send([torch.ones(1)], 0, 0), "invalid rank: 0 is not another"),
        *(
            (call, "several of its elements share one place in memory")
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
            "torch.float8_e4m3fn, which has no sums",
        ),
        (
            lambda: dist.reduce_scatter_tensor(ONE, torch.ones(1, device="meta")),
            "is on meta, but popdist exchanges tensors in the CPU's memory",
        ),
        (
            lambda: dist.reduce_scatter_tensor(ONE, ONE.to_sparse()),
            "layout is torch.sparse_coo, but only dense tensors",
        ),
        pytest.param(
            lambda: dist.all_reduce(ONE.to(torch.complex64).to_sparse()),
            "only real ones in the layout torch.sparse_coo are added up",
            marks=pytest.mark.skipif(
                torch.__version__ < (2, 13), reason="torch 2.10 itself refuses it"
            ),
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
