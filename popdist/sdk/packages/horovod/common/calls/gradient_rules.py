"""The gradients of Horovod's calls, as far as all frameworks have them alike."""

from ..process_sets import ProcessSet
from .reduce_ops import Adasum, Average, Reduction, Sum

_WITH_GRADIENTS = {"allreduce": (Sum, Average, Adasum), "reducescatter": (Sum, Average)}


def check_gradient(call: str, reduction: Reduction, without: str) -> None:
    """Raise RuntimeError if a call has no gradient.

    Args:
        call: Its name.
        reduction: How it reduces.
        without: What a program gives in place of a tensor that needs no gradient.
    """
    if reduction.op not in _WITH_GRADIENTS[call]:
        raise RuntimeError(
            f"{call} with op={reduction.op.name} has no gradient. Use Sum or Average "
            f"where one is needed, or give {without}."
        )


def factor_of_scatter(reduction: Reduction, process_set: ProcessSet) -> float:
    """Return the factor of gathered gradients of a reducescatter.

    As in Horovod, they are multiplied by the number of ranks for a Sum, and keep the
    values of the ranks for an Average.
    """
    factor = reduction.prescale * reduction.postscale
    return factor * (process_set.size() or 1) if reduction.op is Sum else factor


def is_root(root_rank: int, process_set: ProcessSet) -> bool:
    """Return whether this process is the root of a broadcast."""
    return (process_set.ranks or [])[process_set.rank() or 0] == root_rank
