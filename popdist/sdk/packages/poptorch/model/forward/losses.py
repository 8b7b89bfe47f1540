"""The loss of a forward pass.

Any: models and torch's functions take and return objects of all kinds.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...errors import Error

_NAMES = """
binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss
cross_entropy ctc_loss gaussian_nll_loss hinge_embedding_loss huber_loss kl_div
l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
multilabel_soft_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss
triplet_margin_loss triplet_margin_with_distance_loss
"""
_TORCH_LOSSES = frozenset(getattr(functional, name) for name in _NAMES.split())


class TorchLosses(TorchFunctionMode):
    """Records what torch's loss functions return while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _TORCH_LOSSES:
            self.recorded.append(result)
        return result


# Where the loss of a model is found: the index of an output, or one of these.
IDENTITY_LOSS, TORCH_LOSS = "identity_loss", "torch_loss"
LossSource = str | int


def find_loss(
    identity_losses: Sequence[torch.Tensor],
    recorded: Sequence[torch.Tensor],
    output: Any,
) -> LossSource:
    """Return where the loss of a model is found, by its first forward pass.

    Raises:
        Error: There is no loss, or several that do not depend on each other.
    """
    if identity_losses:
        *others, last = identity_losses
        if others and not _depends(last, others):
            raise Error(
                "Multiple independent losses found in graph. Add the losses up, and "
                "pass the sum alone through poptorch.identity_loss."
            )
        return IDENTITY_LOSS
    if not recorded:
        raise Error(
            "The model has no loss to train with. Pass the loss through "
            "poptorch.identity_loss(loss, reduction=...) in forward(), or compute it "
            "there by one of torch's loss functions, such as torch.nn.NLLLoss."
        )
    last = recorded[-1]
    leaves = tree_leaves(output)
    for index, leaf in enumerate(leaves):
        if leaf is last:
            return index
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and _depends(leaf, [last]):
            raise Error(
                "The model changes the result of a torch loss function before it "
                "returns it. Pass the final loss through "
                "poptorch.identity_loss(loss, reduction='none') in forward()."
            )
    return TORCH_LOSS


def loss_of(
    source: LossSource,
    identity_losses: Sequence[torch.Tensor],
    recorded: Sequence[torch.Tensor],
    output: Any,
) -> torch.Tensor:
    """Return the loss of a forward pass.

    Raises:
        Error: It has none.
    """
    if isinstance(source, int):
        losses = tree_leaves(output)[source : source + 1]
    else:
        losses = [*(identity_losses if source == IDENTITY_LOSS else recorded)]
    if not losses or not isinstance(losses[-1], torch.Tensor):
        raise Error(
            "The model computed a loss when it was compiled, but not in this call. Let "
            "forward() do the same in every call."
        )
    loss: torch.Tensor = losses[-1]
    if not loss.requires_grad:
        raise Error(
            "The loss depends on no weight that can be trained. Compute it from the "
            "model's outputs, and do not detach it."
        )
    return loss


def _depends(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Return whether a tensor was computed from all the others."""
    wanted = {other.grad_fn for other in others if other.grad_fn is not None}
    pending, seen = [tensor.grad_fn], set()
    while pending and wanted:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        wanted.discard(node)
        pending.extend(parent for parent, _ in node.next_functions)
    return not wanted
