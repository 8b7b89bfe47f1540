"""Limits of the norms of gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch


@dataclass(frozen=True, slots=True)
class ClipNormSettings:
    """Some weights, and the largest norm that their gradients may have together."""

    # None for all weights.
    weightIds: Sequence[str] | None
    maxNorm: float

    @classmethod
    def clipWeights(cls, weightIds: Sequence[str], maxNorm: float) -> Self:
        """Return the settings for some weights."""
        return cls(list(weightIds), maxNorm)

    @classmethod
    def clipAllWeights(cls, maxNorm: float) -> Self:
        """Return the settings for all weights."""
        return cls(None, maxNorm)


def clipped(
    gradients: Mapping[str, torch.Tensor], settings: Sequence[ClipNormSettings]
) -> dict[str, torch.Tensor]:
    """Return gradients with limited norms over the weights of each setting."""
    result = dict(gradients)
    for setting in settings:
        names = result if setting.weightIds is None else setting.weightIds
        chosen = [name for name in names if name in result]
        if not chosen:
            continue
        norm = torch.stack([result[name].norm() for name in chosen]).norm()
        scale = setting.maxNorm / torch.clamp(norm, min=setting.maxNorm)
        result.update({name: result[name] * scale for name in chosen})
    return result
