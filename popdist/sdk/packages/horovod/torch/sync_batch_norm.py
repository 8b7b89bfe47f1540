"""Batch normalization over the batches of all ranks."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..common.calls.reduce_ops import Sum
from ..common.calls.submission import BASICS
from .calls.collectives import grouped_allreduce


class SyncBatchNorm(_BatchNorm):
    """Normalizes with the mean and the variance of the batches of all ranks.

    It takes the arguments of torch.nn.BatchNorm2d, and tensors of 2 dimensions or more.
    In evaluation it is the same as that.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"The input has {input.dim()} dimensions, but SyncBatchNorm needs 2 or "
                "more: a batch, and channels."
            )

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized batch."""
        self._check_input_dim(input)
        training = self.training or self.running_mean is None
        if not training or BASICS.size() == 1:
            return super().forward(input)
        count, mean, variance = self._statistics(input)
        if self.training and self.track_running_stats:
            self._follow(count, mean.detach(), variance.detach())
        shape = (1, -1, *(1,) * (input.dim() - 2))
        normal = (input - mean.to(input.dtype).view(shape)) * torch.rsqrt(
            variance + self.eps
        ).to(input.dtype).view(shape)
        if self.weight is None or self.bias is None:
            return normal
        return normal * self.weight.view(shape) + self.bias.view(shape)

    def _statistics(self, input: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the number of elements of a channel on all ranks, mean and variance.

        The variance is made of distances from the mean of all ranks, which are small
        where squares of the elements would not be.
        """
        axes = [axis for axis in range(input.dim()) if axis != 1]
        exact = input.float() if input.dtype.itemsize < 4 else input
        own = input.numel() // input.shape[1]
        counts = torch.tensor([own], dtype=torch.int64)
        total, counts = grouped_allreduce([exact.sum(axes), counts], op=Sum)
        count = float(counts.item())
        mean = total / count
        shape = (1, -1, *(1,) * (input.dim() - 2))
        (squares,) = grouped_allreduce(
            [(exact - mean.view(shape)).square().sum(axes)], op=Sum
        )
        return count, mean, squares / count

    def _follow(self, count: float, mean: Tensor, variance: Tensor) -> None:
        """Update the running mean and variance."""
        # Any: the buffers are None where no statistics are tracked.
        layer: Any = self
        layer.num_batches_tracked.add_(1)
        part = self.momentum
        if part is None:
            part = 1.0 / float(layer.num_batches_tracked)
        unbiased = variance * (count / max(count - 1, 1))
        layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), part)
        layer.running_var.lerp_(unbiased.to(layer.running_var.dtype), part)
