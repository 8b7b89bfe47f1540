"""The losses of ai.graphcore."""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tensor_info import BY_ONNX
from .call import Call, Operator

_TINY = torch.finfo(torch.float32).tiny


def _reduced(values: Tensor, reduction: str) -> Tensor:
    if reduction == "NoReduction":
        return values.clone()
    return values.mean() if reduction == "Mean" else values.sum()


def _negative_log_likelihood(call: Call) -> Tensor:
    """Return the loss of probabilities, or of their logarithms."""
    rows = call[0].reshape(-1, call[0].shape[-1])
    if call.get("inputIsLogProbability"):
        return _likelihood(rows, lambda: rows.new_zeros(()), call)
    smallest = max(_TINY, torch.finfo(rows.dtype).tiny)
    logarithms = rows.clamp(min=smallest).log()
    return _likelihood(logarithms, lambda: _no_class(rows), call)


def _likelihood_of_scores(call: Call) -> Tensor:
    """Return the loss of the probabilities that softmax makes of scores.

    Its gradient is the difference of the probabilities and the labels, also where a
    probability is too small for its logarithm, or a label is no class.
    """
    scores = call[0].reshape(-1, call[0].shape[-1])
    rows = scores.log_softmax(-1)

    def missing() -> Tensor:
        # The derivatives of this difference are the probabilities.
        total = scores[:, 0] - rows[:, 0]
        return _no_class(rows) - (total - total.detach())

    return _likelihood(rows, missing, call)


def _no_class(rows: Tensor) -> Tensor:
    """Return the logarithm of PopART's smallest probability."""
    smallest = 6.104e-5 if rows.dtype == torch.float16 else 1e-7
    return rows.new_tensor(smallest).log()


def _likelihood(rows: Tensor, missing: Callable[[], Tensor], call: Call) -> Tensor:
    """Return the loss of the logarithms of probabilities.

    Ignored labels count neither in the sum nor in the number that a mean divides by.
    The mean of ignored labels alone is 0, as in PopART; torch's is NaN.

    Args:
        rows: The logarithms, one row for each label.
        missing: Returns the logarithms for labels that are no class: in PopART these
            have no probability, and are no error.
        call: The labels and the attributes.

    Raises:
        ValueError: The numbers of labels and rows differ.
    """
    labels = call[1].to(torch.int64).reshape(-1)
    if len(labels) != len(rows):
        raise ValueError(f"there are {len(labels)} labels for {len(rows)} rows.")
    classes, reduction = rows.shape[-1], call.get("reduction")
    known = (labels >= 0) & (labels < classes)
    loss = -rows.gather(1, labels.where(known, 0).unsqueeze(1)).squeeze(1)
    counted = torch.ones_like(known)
    if (ignored := call.get("ignoreIndex")) is not None:
        # Among labels without a sign, -1 is the largest number.
        counted = labels != torch.tensor(ignored).to(call[1].dtype).to(torch.int64)
    if bool((counted & ~known).any()):
        warnings.warn(
            f"nllloss got labels that are none of its classes, 0 to {classes - 1}. "
            "PopART gives them the probability 0, and so does popdist's stand-in. "
            "Check the labels of the data.",
            stacklevel=2,
        )
        loss = loss.where(known, -missing())
    loss = loss.where(counted, 0)
    if reduction == "NoReduction":
        return loss.reshape(call[1].shape)
    total = loss.sum()
    return total / counted.sum().clamp(min=1) if reduction == "Mean" else total


def _connectionist(
    rows: Tensor,
    *integers: Tensor,
    reduction: str,
    blank: int,
    outDataType: int = 0,
    call: Call,
) -> Tensor:
    """Return the loss of connectionist temporal classification.

    A mean divides the loss of each sequence by its length, and averages the batch.
    """
    if {value.dtype for value in integers} != {torch.uint32}:
        raise TypeError("the targets and both kinds of lengths must be UINT32.")
    dtype = BY_ONNX[outDataType].torch if outDataType else rows.dtype
    if not (dtype.is_floating_point and rows.is_floating_point()):
        raise TypeError("the logarithms of probabilities and the loss hold fractions.")
    whole = reduction == "NoReduction"
    if call.for_shapes:
        return rows.new_zeros(rows.shape[1:2] if whole else (), dtype=dtype)
    targets, rows_of, labels_of = (value.to(torch.int64) for value in integers)
    kind = "none" if whole else reduction.lower()
    loss = F.ctc_loss(rows.float(), targets, rows_of, labels_of, blank, kind)
    return loss.to(dtype)


LIKELIHOOD_OF_SCORES = Operator(_likelihood_of_scores)

GRAPHCORE = {
    "Ctc": Operator.of(_connectionist),
    "IdentityLoss": Operator.of(_reduced),
    "L1": Operator(
        lambda call: _reduced(call.get("lambda") * call[0].abs(), call.get("reduction"))
    ),
    "Nll": Operator(_negative_log_likelihood),
}
