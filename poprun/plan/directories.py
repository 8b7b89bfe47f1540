"""The directories that users name: where instances run, and what --sync copies.

Agents import this: it imports little.
"""

import os
import stat

from poprun.errors import LaunchError, OptionError
from poprun.plan.host_facts import HostFacts

# Users keep no programs directly in these, and copying them would change other hosts.
_SYSTEM = """
    /bin /boot /dev /etc /home /lib /lib32 /lib64 /media /mnt /opt /proc /run /sbin /srv
    /sys /tmp /usr /usr/bin /usr/lib /usr/local /usr/sbin /var /var/lib /var/tmp
"""
SYSTEM = frozenset(_SYSTEM.split())


def check_synchronised(directory: str) -> None:
    """Check that --sync may copy a folder to other hosts.

    Raises:
        OptionError: There is no such folder, or it is one of the system.
    """
    path = os.path.realpath(directory)
    home = os.path.expanduser("~")
    # It stays "~" for a user who has none.
    holds_home = os.path.isabs(home) and is_below(os.path.realpath(home), path)
    problem = ""
    if not os.path.isdir(path):
        exists = os.path.exists(path)
        problem = "is not a directory" if exists else "does not exist"
    elif not os.access(path, os.R_OK | os.X_OK):
        problem = "cannot be read"
    elif holds_home:
        problem = "contains your home directory, with your keys and settings"
    elif path in SYSTEM or any(
        # On another host a link in these leads elsewhere: /proc/self/cwd.
        is_below(each, kernels)
        for each in (path, os.path.abspath(directory))
        for kernels in ("/dev", "/proc", "/sys")
    ):
        problem = "belongs to the system"
    if problem:
        raise OptionError(
            f"--sync is {directory!r}, which {problem}. Name the folder that "
            "contains your program."
        )


def is_below(path: str, directory: str) -> bool:
    """Return whether an absolute path is a directory, or is inside it."""
    return os.path.commonpath([path, directory]) == directory


def check_current_directory() -> None:
    """Check that programs can start in the current directory.

    Raises:
        LaunchError: It has been deleted, or this user may not enter it.
    """
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        raise LaunchError(
            "The current directory has been deleted, so no program can start "
            "in it. Go to another one with cd."
        ) from None
    if not os.access(directory, os.X_OK):
        raise LaunchError(
            f"You may not enter the current directory, {directory}, so no "
            "program can start in it. Go to another one with cd."
        )


def find_directory(name: str | None, host: HostFacts) -> str | None:
    """Return the absolute path of the directory that the user names for an instance.

    Raises:
        OptionError: There is no such directory on this host. Agents look on others.
    """
    if name is None:
        return None
    directory = os.path.normpath(os.path.join(host.cwd, name))
    if host.is_own_host:
        check_directory(directory)
    return directory


def check_directory(directory: str) -> None:
    """Check that instances can run in a directory of this host.

    Raises:
        OptionError: They cannot.
    """
    try:
        if stat.S_ISDIR(os.stat(directory).st_mode):
            reason = "" if os.access(directory, os.X_OK) else "you may not enter it"
        else:
            reason = "it is not a directory"
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    if reason:
        raise OptionError(
            f"No instance can run in {directory!r}: {reason}. Create it with "
            "mkdir -p, or name another directory with --cwd."
        )
