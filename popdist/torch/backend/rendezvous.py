"""Where the members of torch.distributed meet: popdist:// and env://.

For popdist://, a launcher's variables say which processes belong to the job, as for
`import popdist`: it takes neither MASTER_PORT, which another program may have taken,
nor RANK. env:// is torch's own, but under poprun it fails once a process has ended.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from socket import create_connection, getaddrinfo
from time import sleep
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from popdist.engine.hosts.links_thread import started
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.pidfds import Pidfd
from popdist.errors import ArenaError
from popdist.hosts import host_numbers
from popdist.job import TorchPlace
from popdist.session import STATE
from popdist.torch import tensors
from popdist.torch.calls.work import backend_errors

_HOST = "127.0.0.1"
# How many seconds pass between two looks whether rank 0 serves its store.
_PAUSE = 0.02
# For how long torch may try to connect to it.
_CONNECTION = timedelta(seconds=5)

# torch calls such a function for an address: it yields a store, a rank and a size.
Rendezvous = Callable[..., Iterator[tuple[Store, int, int]]]


def rendezvous(
    url: str, timeout: timedelta = dist.default_pg_timeout, **_: Any
) -> Iterator[tuple[Store, int, int]]:
    """Yield a store that all instances of the job share, this one and how many.

    The store is served by instance 0, at a port that the system chooses.

    Raises:
        ValueError: The program gives another rank or size than the launcher.
        DistBackendError: The instances cannot meet.
    """
    with backend_errors():
        group = STATE.group("torch", STATE.job.members)
        with group:
            _check(url, group.rank, group.size)
            port, server = torch.zeros(1, dtype=torch.int64), None
            if group.rank == 0:
                server = _served(_HOST, 0, group.size, timeout)
                port[0] = server.port
            tensors.broadcast(group, [port])
            place = TorchPlace(group.rank, group.size, _first_host(), int(port))
            known = group.pidfds
        store = server or _connected(place, timeout, known)
    yield store, place.rank, place.size


def by_environment(usual: Rendezvous) -> Rendezvous:
    """Return a handler of env:// that under poprun fails once a process has ended.

    torch's waits in its constructor of the store, as long as any process is missing.
    Here only the calls that need a process wait for it.
    """

    @wraps(usual)
    def rendezvous_by_environment(
        url: str, timeout: timedelta = dist.default_pg_timeout, **others: Any
    ) -> Iterator[tuple[Store, int, int]]:
        query = dict(parse_qsl(urlparse(url).query))
        rank, size = query.pop("rank", None), query.pop("world_size", None)
        with backend_errors():
            # The first use lets an instance that poprun has added join the job.
            STATE.job  # noqa: B018
            place = None if query else TorchPlace.of_poprun(STATE.environ, rank, size)
            store = _store_of(place, timeout) if place and place.size > 1 else None
        if place and store:
            yield store, place.rank, place.size
            return
        try:
            yield from usual(url, timeout=timeout, **others)
        except ValueError as error:
            raise ValueError(
                f"{error}. For the backend popdist, init_method='popdist://' takes "
                "rank and size from poprun, mpirun, srun or torchrun, and makes a "
                "group of one without them."
            ) from error

    return rendezvous_by_environment


def _store_of(place: TorchPlace, timeout: timedelta) -> Store:
    """Return the store of rank 0, once that serves it."""
    if place.rank == 0:
        return _served(place.host, place.port, place.size, timeout)
    return _connected(place, timeout, {})


def _served(host: str, port: int, size: int, timeout: timedelta) -> TCPStore:
    """Return a new store at an address, or another one of this process there."""
    return TCPStore(
        host, port, size, True, timeout, wait_for_workers=False, multi_tenant=True
    )


def _connected(
    place: TorchPlace, timeout: timedelta, known: Mapping[int, Pidfd]
) -> Store:
    """Return a connection to the store of rank 0.

    torch's constructor does not see that a process ends, so it is called once a socket
    listens there, and gets some seconds at a time.

    Args:
        known: A pidfd of each instance that this one has met.
    """
    size = place.size
    meeting = Meeting(
        *("", place.rank, range(size), timeout.total_seconds(), STATE.settings.stall),
        *(known, STATE.job.ended_file_of(place.rank, size), STATE.why_over()),
    )
    deadline = meeting.deadline()
    while True:
        with suppress(OSError, dist.DistNetworkError):
            create_connection((place.host, place.port), timeout=1).close()
            store = TCPStore(
                place.host, place.port, size, False, _CONNECTION, wait_for_workers=False
            )
            store.set_timeout(timeout)
            return store
        meeting.check()
        meeting.check_file()
        deadline.check(lambda: meeting.name_of([0]))
        sleep(_PAUSE)


def _first_host() -> str:
    """Return the address or name for connections to instance 0's host.

    Raises:
        ArenaError: Only the name is known, and has no address here.
    """
    if host_numbers()[STATE.job.place.rank] == 0:
        return _HOST
    place = TorchPlace.of_poprun(STATE.environ)
    if place:
        return place.host
    name = started().names[0]
    try:
        getaddrinfo(name, None)
    except OSError as error:
        raise ArenaError(
            f"The host of instance 0 is called {name}, but this one knows no address "
            f"of that name: {error}. Start the program with poprun, or give "
            "init_process_group an init_method with an address of that host, such as "
            "tcp://10.0.0.1:29500."
        ) from error
    return name


def _check(url: str, rank: int, size: int) -> None:
    """Raise ValueError if the program numbers the instances in another way."""
    query = dict(parse_qsl(urlparse(url).query))
    for name, value in (("rank", rank), ("world_size", size)):
        if query.get(name, str(value)) != str(value):
            raise ValueError(
                f"{name}={query[name]} is given to init_process_group, but for the "
                f"launcher of this job it is {value}. Leave rank and world_size out."
            )
