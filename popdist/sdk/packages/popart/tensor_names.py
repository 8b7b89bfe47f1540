"""The prefixes of the names of gradients and of the optimizers' tensors."""

from collections.abc import Callable

GRADIENT = "Gradient___"
# SGD's combined tensor, and the first, second and third momentum.
COMBINED, FIRST, SECOND, THIRD = "Accl___", "Accl1___", "Accl2___", "Accl3___"
# The counter of a weight's updates.
STEP = "Step___"


def _reserved(prefix: str) -> Callable[[], str]:
    """Return PopART's function for a prefix."""

    def reservedPrefix() -> str:
        return prefix

    reservedPrefix.__doc__ = f"Return {prefix!r}, with which names of tensors begin."
    return reservedPrefix


reservedGradientPrefix = _reserved(GRADIENT)
reservedUpdatedVarPrefix = _reserved("UpdatedVar___")
reservedAccumPrefix = _reserved("Accum___")
reservedAcclPrefix = _reserved(COMBINED)
reservedAccl1Prefix = _reserved(FIRST)
reservedAccl2Prefix = _reserved(SECOND)
reservedAccl3Prefix = _reserved(THIRD)
reservedStepPrefix = _reserved(STEP)
