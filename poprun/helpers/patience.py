"""How much longer than usual others may take because this machine is busy."""

import os

MOST = 4.0
# So many processes per processor slow nothing down that waits for a network.
USUAL_LOAD = 2.0


def patience() -> float:
    """Return by what a limit is multiplied: 1, or up to 4 on a busy machine."""
    try:
        load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    except OSError:
        return 1.0
    return min(MOST, max(1.0, load / USUAL_LOAD))
