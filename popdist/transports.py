"""The choice of a transport for the members of a group, and what it needs to know."""

import os
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from popdist.environment import OPEN_MPI_SURVIVES
from popdist.job import Job, Place
from popdist.launchers import check_mpi, has_mpi

if TYPE_CHECKING:
    from socket import socket

    from popdist.engine.hosts.tcp.listener import TcpRoot
    from popdist.engine.hosts.world import JobHosts
    from popdist.engine.transport import MeetMembers


def meet_members_of(place: Place, job_hosts: "Callable[[], JobHosts]") -> "MeetMembers":
    """Return the function that makes the transport of a group.

    Args:
        place: The place of this process in the set that the transport must reach.
        job_hosts: Returns the hosts of the job.
    """
    # Not above: without collectives, numpy and the engine are not needed.
    if place.on_one_host:
        from popdist.engine.shm.shm_transport import ShmTransport

        return ShmTransport.meet
    from popdist.engine.hosts.hosts_transport import HostsTransport

    # Without this, Open MPI 5 would end this process when another one dies.
    os.environ.setdefault(OPEN_MPI_SURVIVES, "1")
    return partial(HostsTransport.meet, job_hosts=job_hosts())


def job_hosts_of(
    job: Job,
    tcp: tuple[str, int, bytes] | None,
    look_up: "Callable[[], TcpRoot] | None",
    listener: "socket | None" = None,
    silence_limit: float = inf,
) -> "JobHosts":
    """Return the hosts of a job's instances.

    Args:
        tcp: Where links by TCP begin, if the user or poprun tells it.
        look_up: Returns the same, if a store of all instances tells it.
        listener: The socket of instance 0 at that address, if it listens already.
        silence_limit: See TcpRoot.

    Raises:
        ArenaError: `--mpirun local` has started this process, and no MPI.
    """
    if tcp or has_mpi(os.environ):
        look_up = None
    elif look_up is None:
        check_mpi(os.environ)
    # Not above, as in meet_members_of().
    from popdist import __version__
    from popdist.engine.hosts.tcp.listener import TcpRoot
    from popdist.engine.hosts.world import JobHosts

    place, name = job.place, job.shared_name
    host = name if place.host_index is None else place.host_index
    return JobHosts(
        *(place.rank, place.size, f"{host}", name, place.per_host, __version__),
        tcp=TcpRoot(*tcp, listener, silence_limit) if tcp else None,
        look_up=look_up,
    )
