"""The prefixes of the names of gradients and of the optimizers' tensors."""

GRADIENT = "Gradient___"
UPDATED = "UpdatedVar___"
ACCUMULATOR = "Accum___"
COMBINED = "Accl___"
FIRST, SECOND, THIRD = "Accl1___", "Accl2___", "Accl3___"
STEP = "Step___"


def reservedGradientPrefix() -> str:
    """Return the prefix of a gradient's name."""
    return GRADIENT


def reservedUpdatedVarPrefix() -> str:
    """Return the prefix of an updated weight's name."""
    return UPDATED


def reservedAccumPrefix() -> str:
    """Return the prefix of an accumulator's name."""
    return ACCUMULATOR


def reservedAcclPrefix() -> str:
    """Return the prefix of the name of SGD's combined tensor."""
    return COMBINED


def reservedAccl1Prefix() -> str:
    """Return the prefix of a first momentum's name."""
    return FIRST


def reservedAccl2Prefix() -> str:
    """Return the prefix of a second momentum's name."""
    return SECOND


def reservedAccl3Prefix() -> str:
    """Return the prefix of a third momentum's name."""
    return THIRD


def reservedStepPrefix() -> str:
    """Return the prefix of the name of a weight's counter of updates."""
    return STEP
