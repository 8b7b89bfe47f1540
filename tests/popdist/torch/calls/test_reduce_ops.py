"""torch's reductions as the engine's, or as calculations of popdist.torch's own."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from popdist.torch.calls import reduce_ops
from popdist.torch.calls.reduce_ops import check_reduction, check_sparse
from popdist.torch.calls.work import InvalidArgumentError
from tests.popdist.torch.distributed import PREMUL_SUM, on_all, world

OP: Any = dist.ReduceOp


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (OP(OP.AVG), torch.complex64),
        (OP.MAX, torch.bool),
        (OP.BXOR, torch.int16),
        (PREMUL_SUM(0.5), torch.float16),
    ],
)
def test_tensors_that_can_be_reduced_are_taken(op: Any, dtype: torch.dtype) -> None:
    check_reduction(op, dtype)


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        (OP.AVG, torch.bool, "AVG of torch.bool would not be a bool"),
        (OP.BOR, torch.float32, "BOR is for integers and bools"),
        (OP.MAX, torch.complex64, "MAX is for real numbers"),
        (OP.SUM, torch.float8_e5m2, "which has no sums"),
        (PREMUL_SUM(0.5), torch.int32, "PREMUL_SUM cannot multiply torch.int32"),
        ("xor", torch.float32, "xor is not a reduction of this backend"),
    ],
)
def test_tensors_that_cannot_be_reduced_are_refused(
    op: Any, dtype: torch.dtype, text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        check_reduction(op, dtype)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize(
    ("op", "sparse", "text"),
    [
        (OP.MAX, torch.Tensor.to_sparse, "reduction operation of sparse"),
        (OP.SUM, torch.Tensor.to_sparse_csr, "torch.sparse_coo are added up"),
        (OP.SUM, lambda x: x.cfloat().to_sparse(), "or complex"),
    ],
    ids=["maximum", "layout", "complex"],
)
def test_sparse_tensors_that_cannot_be_added_up_are_refused(
    op: Any, sparse: Any, text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        check_sparse(op, sparse(torch.eye(2)))


def test_bits_are_reduced_in_pieces_and_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduce_ops, "_GATHERED_BYTES", 16)

    def member(rank: int, size: int) -> Any:
        whole = torch.arange(10).view(5, 2)
        dist.all_reduce(column := whole[:, rank % 2], OP.BOR)
        return column.tolist(), whole[:, 1 - rank % 2].tolist()

    even, odd = [0, 2, 4, 6, 8], [1, 3, 5, 7, 9]
    assert on_all(tmp_path, 2, member) == [(odd, odd), (odd, even)]


def test_sparse_tensors_have_elements_in_different_places(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        # Member 2 has none, and an index may stand for several elements.
        indices = torch.tensor([[rank, 2, 2]])[:, : 0 if rank == 2 else 3]
        values = torch.tensor([1.0, 2.0, 3.0])[: indices.shape[1]]
        x = torch.sparse_coo_tensor(indices, values, (4,), check_invariants=True)
        y = torch.eye(4)[rank].to_sparse()
        world().allreduce([x, y]).wait()
        return x.to_dense().tolist(), y.to_dense().tolist()

    total = [2, 2, 11, 0]
    assert on_all(tmp_path, 3, member) == [(total, total)] * 3
