"""Keeps the memory that a training step frees for the next step."""

import ctypes
from functools import cache

# Parameters of mallopt(), as glibc numbers them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# The most that glibc takes: larger pieces go back to the kernel at once.
_LARGEST_PIECE = 32 << 20
_MOST_KEPT = 1 << 30


@cache
def keep_freed_memory() -> bool:
    """Let this process keep up to 1 GiB of what it frees; return whether it can.

    Each step makes and frees rows of gradients. glibc gives such pieces back to the
    kernel, whose page faults then take a tenth of each step. Other C libraries have no
    mallopt(), and stay as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    pieces = mallopt(_MMAP_THRESHOLD, _LARGEST_PIECE)
    kept = mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
    return bool(pieces and kept)
