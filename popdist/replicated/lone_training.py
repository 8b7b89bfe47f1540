"""A warning at the end of a job if its instances have trained separately."""

import atexit
import logging
import sys
import threading
from functools import cache, partial

from popdist.errors import LauncherError
from popdist.session import STATE

logger = logging.getLogger("popdist")

# Set where another warning has told the user already.
told = threading.Event()


@cache
def note_training(advice: str) -> None:
    """Let instance 0 warn when it ends, if it has reduced nothing until then.

    Training within one instance calls this at each step. There is no warning if another
    library reduces for the program.

    Args:
        advice: A sentence that tells how to make the instances train together.
    """
    try:
        place = STATE.job.place
    # Another launcher has started it, in a way that popdist cannot read.
    except LauncherError:
        return
    if place.rank == 0 and place.size > 1 and not _has_other_collectives():
        atexit.register(partial(_warn_if_alone, place.size, advice))


def _has_other_collectives() -> bool:
    # popdist's own use of MPI, among several hosts, begins with a group.
    torch_distributed = sys.modules.get("torch.distributed")
    return "mpi4py.MPI" in sys.modules or (
        torch_distributed is not None
        and torch_distributed.is_available()
        and torch_distributed.is_initialized()
    )


def _warn_if_alone(instances: int, advice: str) -> None:
    if not told.is_set() and not STATE.reductions().total():
        logger.warning(
            "The %d instances have trained separately: they have reduced nothing, so "
            "each has a different model. %s",
            instances,
            advice,
        )
