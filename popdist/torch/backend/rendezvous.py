"""Where the members of torch.distributed meet: dist.init_process_group with popdist://.

A launcher's variables say which processes belong to the job, as for `import popdist`:
it takes neither MASTER_PORT, which another program may have taken, nor RANK.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from popdist.errors import PopdistError
from popdist.session import STATE
from popdist.torch import tensors
from popdist.torch.calls.work import backend_error

_HOST = "127.0.0.1"


def rendezvous(
    url: str, timeout: timedelta = dist.default_pg_timeout, **_: Any
) -> Iterator[tuple[Store, int, int]]:
    """Yield a store that all instances of the job share, this one and how many.

    The store is served by instance 0, at a port that the system chooses.

    Raises:
        ValueError: The program gives another rank or size than the launcher.
        DistBackendError: The instances cannot meet.
    """
    try:
        group = STATE.group("torch", STATE.job.members)
        with group:
            _check(url, group.rank, group.size)
            port, server = torch.zeros(1, dtype=torch.int64), None
            if group.rank == 0:
                server = TCPStore(_HOST, 0, None, True, timeout, wait_for_workers=False)
                port[0] = server.port
            tensors.broadcast(group, [port])
            rank, size = group.rank, group.size
    except PopdistError as error:
        raise backend_error(error) from error
    store = server or TCPStore(_HOST, int(port), None, False, timeout)
    yield store, rank, size


def _check(url: str, rank: int, size: int) -> None:
    """Raise ValueError if the program numbers the instances in another way."""
    given = dict(parse_qsl(urlparse(url).query))
    for name, value in (("rank", rank), ("world_size", size)):
        if given.get(name, str(value)) != str(value):
            raise ValueError(
                f"{name}={given[name]} is given to init_process_group, but for the "
                f"launcher of this job it is {value}. Leave rank and world_size out."
            )
