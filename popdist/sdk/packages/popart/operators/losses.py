"""The losses of ai.graphcore."""

import torch
import torch.nn.functional as F

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


LIKELIHOOD_OF_SCORES = Operator(_likelihood_of_scores)

GRAPHCORE = {
    "IdentityLoss": Operator(_identity),
    "L1": Operator(_l1),
    "Nll": Operator(_negative_log_likelihood),
}
