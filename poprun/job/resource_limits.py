"""The limit of open files of this process, and of those that it starts."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from poprun.errors import LaunchError
from poprun.words import counted

# For each instance: the connection to its shim, its stdout and its stderr, and the
# connection of its Python interpreter when that ends.
PER_INSTANCE = 4
# For all: the control socket, short-lived descriptors, and the clients of the job.
SPARE = 68


def raise_descriptor_limit(num_instances: int, each: int) -> tuple[int, int]:
    """Allow this process the open files that a job needs; return the limits before.

    Args:
        each: How many an instance needs besides what all need.

    Raises:
        LaunchError: The hard limit does not allow that, or there is no /proc.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    per_instance = PER_INSTANCE + each
    needed = _num_descriptors() + SPARE + num_instances * per_instance
    if hard not in (resource.RLIM_INFINITY, before[0]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif hard == resource.RLIM_INFINITY and before[0] < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise LaunchError(
            f"poprun needs {needed} open files for "
            f"{counted(num_instances, 'instance')}, {per_instance} for each, but the "
            f"hard limit is {hard}. Raise it with 'ulimit -Hn', or start fewer "
            "instances."
        )
    return before


def check_proc() -> None:
    """Check that there is a /proc.

    Raises:
        LaunchError: It is not mounted, or cannot be read.
    """
    _num_descriptors()


def _num_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError as error:
        raise LaunchError(
            "poprun finds the processes of a job through /proc, which cannot "
            f"be read: {error.strerror}. Mount it with 'mount -t proc proc "
            "/proc'."
        ) from None


@contextmanager
def caller_limits(limits: tuple[int, int]) -> Iterator[None]:
    """Give a process that is started meanwhile the caller's limit of descriptors."""
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[0], own[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, own)
