"""Another transport in place of shared memory: threads of one process."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from popdist.engine.group import Group
from tests.popdist.other_transports import ThreadTransport


def results(
    replicas: Sequence[int], member: Callable[[Group], Any], *, flat: bool
) -> list[Any]:
    """Return what all members return, each of which is a thread."""
    found: list[Any] = [None] * len(replicas)

    def live(transport: ThreadTransport) -> None:
        with Group(transport, replicas=None if flat else replicas) as group:
            found[transport.rank] = member(group)

    threads = [
        threading.Thread(target=live, args=(one,))
        for one in ThreadTransport.of(len(replicas))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_every_call_goes_over_another_transport_as_well() -> None:
    def member(group: Group) -> Any:
        rank = group.rank
        x = np.array([rank, 10 * rank, 5], np.float32)
        there = np.zeros(3, np.float32)
        if rank == 0:
            group.send(np.array([7, 8, 9], np.float32), 1)
        elif rank == 1:
            group.recv(there, 0)
        group.barrier()
        reduced = group.reduce(x, "max", 1)
        gathered = group.gather(x[: 1 + rank], 2)
        return {
            "all_reduce": group.all_reduce(x).tolist(),
            "in place": group.all_reduce(x.copy(), out=there * 0).tolist(),
            "async": group.all_reduce(x, "max", async_op=True).wait().tolist(),
            "grouped": [one.tolist() for one in group.grouped_all_reduce([x[:1], x])],
            "reduce": None if reduced is None else reduced.tolist(),
            "reduce_scatter": group.reduce_scatter(x).tolist(),
            "broadcast": group.broadcast(x, 2).tolist(),
            "all_gather": [one.tolist() for one in group.all_gather(x[:rank])],
            "gather": None if gathered is None else [len(one) for one in gathered],
            "scatter": group.scatter(np.eye(3) if rank == 1 else None, 1).tolist(),
            "all_to_all": group.all_to_all(x).tolist(),
            "recv": there.tolist(),
        }

    found = results([1, 1, 1], member, flat=True)

    for rank, one in enumerate(found):
        assert one == {
            "all_reduce": [3, 30, 15],
            "in place": [3, 30, 15],
            "async": [2, 20, 5],
            "grouped": [[3], [3, 30, 15]],
            "reduce": [2, 20, 5] if rank == 1 else None,
            "reduce_scatter": [[3], [30], [15]][rank],
            "broadcast": [2, 20, 5],
            "all_gather": [[], [1], [2, 20]],
            "gather": [1, 2, 3] if rank == 2 else None,
            "scatter": np.eye(3)[rank].tolist(),
            "all_to_all": [[0, 1, 2], [0, 10, 20], [5, 5, 5]][rank],
            "recv": [7, 8, 9] if rank == 1 else [0, 0, 0],
        }


def test_members_with_several_replicas_go_over_another_transport_as_well() -> None:
    def member(group: Group) -> Any:
        rows = group.num_local_replicas
        x = np.full((rows, 3), group.rank + 1, np.int32)
        return (
            group.all_reduce(x).tolist(),
            group.reduce_scatter(x).tolist(),
            [one.tolist() for one in group.all_gather(x[:, :1])],
        )

    found = results([1, 2], member, flat=False)

    gathered = [[1], [2], [2]]
    assert found == [
        ([[5, 5, 5]], [[5]], gathered),
        ([[5, 5, 5]] * 2, [[5], [5]], gathered),
    ]
