"""Checks of the arguments that distributed optimizers of all frameworks have."""

from .calls.reduce_ops import Adasum, Average, Reduction, Sum, choose_op


def checked_reduction(op: int, predivide: float) -> Reduction:
    """Return the reduction of gradients, from an optimizer's arguments.

    Args:
        op: Average, Sum or Adasum.
        predivide: gradient_predivide_factor.

    Raises:
        ValueError: They are not valid.
    """
    chosen = choose_op(op, None)
    if predivide != 1.0 and chosen is not Average:
        raise ValueError(
            f"gradient_predivide_factor is {predivide} with op={chosen.name}, but it "
            "is supported with op=Average only."
        )
    if chosen not in (Average, Sum, Adasum):
        raise ValueError(
            f"op is {chosen.name}, but gradients are reduced by Average, Sum or Adasum."
        )
    return Reduction(chosen, 1.0 / predivide, predivide)


def checked_passes(passes: int) -> int:
    """Return backward_passes_per_step; raise ValueError if it is not valid."""
    if passes < 1:
        raise ValueError(
            f"backward_passes_per_step is {passes}, but must be 1 or more."
        )
    return passes
