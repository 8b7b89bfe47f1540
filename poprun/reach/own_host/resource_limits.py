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
# For each other host: the connection to its agent, and the stderr of the command.
PER_HOST = 2
# For all: the control socket, short-lived descriptors, and the clients of the job.
SPARE = 68


def raise_descriptor_limit(num_instances: int, each: int) -> None:
    """Allow this process the open files that a job needs.

    Args:
        each: How many an instance needs besides what all need.

    Raises:
        LaunchError: The hard limit does not allow that, or there is no /proc.
    """
    _raise_limit(num_instances, "instance", PER_INSTANCE + each, "start")


def allow_connections(num_hosts: int) -> None:
    """Allow this process the open files for connections to other hosts.

    Raises:
        LaunchError: The hard limit does not allow that, or there is no /proc.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Commands such as ssh inherit the limit, so it is raised only if that is needed.
    if _num_needed(num_hosts, PER_HOST) > soft:
        _raise_limit(num_hosts, "host", PER_HOST, "name")


def _raise_limit(number: int, noun: str, each: int, verb: str) -> None:
    """Allow this process the open files for so many instances or hosts.

    Args:
        verb: What the user is to do with fewer of them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _num_needed(number, each)
    if hard not in (resource.RLIM_INFINITY, soft):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif hard == resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise LaunchError(
            f"poprun needs {needed} open files for {counted(number, noun)}, {each} for "
            f"each, but the hard limit is {hard}. Raise it with 'ulimit -Hn', or "
            f"{verb} fewer {noun}s."
        )


def _num_needed(number: int, each: int) -> int:
    return _num_descriptors() + SPARE + number * each


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
