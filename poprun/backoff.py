"""The waits before the same thing is tried again: each is twice the one before."""

# Before a job, or an instance of it, that has failed is started again.
FIRST_RESTART_S, LONGEST_RESTART_S = 1.0, 60.0


def doubled_wait(first_s: float, number: int, longest_s: float) -> float:
    """Return the wait after `number` others: the first one doubled as many times."""
    # The power for thousands of them would be too large for a float.
    return min(first_s * 2.0 ** min(number, 64), longest_s)


def restart_wait(number: int) -> float:
    """Return the wait before a restart after `number` others."""
    return doubled_wait(FIRST_RESTART_S, number, LONGEST_RESTART_S)
