"""The prefixes of the names of gradients and of the optimizers' tensors."""

GRADIENT = "Gradient___"
UPDATED = "UpdatedVar___"
ACCUMULATOR = "Accum___"
COMBINED = "Accl___"
FIRST, SECOND, THIRD = "Accl1___", "Accl2___", "Accl3___"
STEP = "Step___"


def reservedGradientPrefix() -> str:
    """Return what stands before the name of a tensor in that of its gradient."""
    return GRADIENT


def reservedUpdatedVarPrefix() -> str:
    """Return what stands before the name of a weight in that of the updated one."""
    return UPDATED


def reservedAccumPrefix() -> str:
    """Return what stands before the name of a weight in that of its accumulator."""
    return ACCUMULATOR


def reservedAcclPrefix() -> str:
    """Return what stands before a weight's name in that of SGD's combined tensor."""
    return COMBINED


def reservedAccl1Prefix() -> str:
    """Return what stands before a weight's name in that of its first momentum."""
    return FIRST


def reservedAccl2Prefix() -> str:
    """Return what stands before a weight's name in that of its second momentum."""
    return SECOND


def reservedAccl3Prefix() -> str:
    """Return what stands before a weight's name in that of its third momentum."""
    return THIRD


def reservedStepPrefix() -> str:
    """Return what stands before a weight's name in that of its counter of updates."""
    return STEP
