"""How busy this machine is, and how much longer timeouts are for that."""

import os

MOST = 4.0
# So many processes per processor slow nothing down that waits for a network.
USUAL_LOAD = 2.0


def timeout_factor() -> float:
    """Return by what a timeout is multiplied: 1, or up to 4 on a busy machine."""
    try:
        load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    except OSError:
        return 1.0
    return min(MOST, max(1.0, load / USUAL_LOAD))
