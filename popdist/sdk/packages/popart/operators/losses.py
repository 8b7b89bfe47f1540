"""The losses of ai.graphcore."""

import torch
import torch.nn.functional as F

from ..tensor_info import BY_ONNX
from .call import Call, Operator

_TINY = torch.finfo(torch.float32).tiny


def _reduced(values: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "NoReduction":
        return values
    return values.mean() if reduction == "Mean" else values.sum()


def _l1(call: Call) -> torch.Tensor:
    return _reduced(call.get("lambda") * call[0].abs(), call.get("reduction"))


def _identity(call: Call) -> torch.Tensor:
    return _reduced(call[0].clone(), call.get("reduction"))


def _negative_log_likelihood(call: Call) -> torch.Tensor:
    """Return the loss of probabilities, or of their logarithms."""
    rows = call[0].reshape(-1, call[0].shape[-1])
    if not call.get("inputIsLogProbability"):
        smallest = max(_TINY, torch.finfo(rows.dtype).tiny)
        rows = rows.clamp(min=smallest).log()
    return _likelihood(rows, call)


def _likelihood_of_scores(call: Call) -> torch.Tensor:
    """Return the loss of the probabilities that softmax makes of scores.

    Its gradient is the difference of the probabilities and the labels, also where a
    probability is too small for its logarithm.
    """
    scores = call[0].reshape(-1, call[0].shape[-1])
    return _likelihood(scores.log_softmax(-1), call)


def _likelihood(rows: torch.Tensor, call: Call) -> torch.Tensor:
    """Return the loss of the logarithms of probabilities.

    What the labels to ignore have counts neither in the sum nor in the number that a
    mean divides by.
    """
    labels = call[1].to(torch.int64)
    reduction, ignored = call.get("reduction"), call.get("ignoreIndex")
    loss = F.nll_loss(
        rows,
        labels.reshape(-1),
        ignore_index=-100 if ignored is None else ignored,
        reduction="none" if reduction == "NoReduction" else reduction.lower(),
    )
    return loss.reshape(labels.shape) if reduction == "NoReduction" else loss


def _connectionist(call: Call) -> torch.Tensor:
    """Return the loss of connectionist temporal classification.

    A mean divides the loss of each sequence by its length, and is that of the batch.
    """
    kinds = {value.dtype for value in call.inputs[1:] if value is not None}
    if kinds != {torch.uint32}:
        raise TypeError("the targets and both kinds of lengths must be UINT32.")
    rows, reduction = call[0], call.get("reduction")
    number = call.get("outDataType", 0)
    dtype = BY_ONNX[number].torch if number else rows.dtype
    if not (dtype.is_floating_point and rows.is_floating_point()):
        raise TypeError("the logarithms of probabilities and the loss hold fractions.")
    if call.for_shapes:
        size = rows.shape[1:2] if reduction == "NoReduction" else ()
        return rows.new_zeros(size, dtype=dtype)
    targets, input_lengths, target_lengths = (
        call[index].to(torch.int64) for index in (1, 2, 3)
    )
    loss = F.ctc_loss(
        *(rows.float(), targets, input_lengths, target_lengths),
        blank=call.get("blank"),
        reduction="none" if reduction == "NoReduction" else reduction.lower(),
    )
    return loss.to(dtype)


LIKELIHOOD_OF_SCORES = Operator(_likelihood_of_scores)

GRAPHCORE = {
    "Ctc": Operator(_connectionist),
    "IdentityLoss": Operator(_identity),
    "L1": Operator(_l1),
    "Nll": Operator(_negative_log_likelihood),
}
