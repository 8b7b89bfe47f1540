"""The directory in which each instance runs. Agents import this: it imports little."""

import os
import stat
from collections.abc import Sequence

from poprun.annotations import TYPE_CHECKING
from poprun.errors import OptionError
from poprun.plan.host_facts import HostFacts

if TYPE_CHECKING:
    from poprun.plan.topology import Topology
    from poprun.plan.values import GivenArguments


def find_directories(
    arguments: "GivenArguments", topology: "Topology", facts: Sequence[HostFacts]
) -> list[str | None]:
    """Return the absolute path of the directory of each instance, if it has its own.

    Raises:
        OptionError: There is no such directory on this host. Agents look on others.
    """
    directories: list[str | None] = []
    for rank in range(topology.num_instances):
        host, directory = facts[topology.host_of(rank)], arguments.directory(rank)
        if directory is not None:
            directory = os.path.normpath(os.path.join(host.cwd, directory))
            if directory not in directories and host.is_own_host:
                check_directory(directory)
        directories.append(directory)
    return directories


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
            f"No instance can run in {directory!r}: {reason}. Make it with mkdir -p, "
            "or name another directory by --cwd."
        )
