"""Another transport in place of shared memory: threads of one process."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from popdist.engine.calls.exchanges import Exchanges
from popdist.engine.calls.point_to_point import PointToPoint
from popdist.engine.calls.reductions import Reductions
from popdist.engine.spec.dtypes import REDUCTIONS, dtype_of
from popdist.engine.spec.operations import Operation
from popdist.engine.transport import Pair, Rows, Transport
from popdist.engine.worker import Worker

FOLDS: dict[int, Callable[[Any], Any]] = {
    REDUCTIONS["sum"]: lambda rows: np.sum(rows, axis=0),
    REDUCTIONS["max"]: lambda rows: np.max(rows, axis=0),
}


class Board:
    """Where the members of a group, threads of this process, put what all may read."""

    def __init__(self, replicas: Sequence[int]) -> None:
        self.replicas = tuple(replicas)
        self._values: list[Any] = [None] * len(replicas)
        self._barrier = threading.Barrier(len(replicas), timeout=20)
        self.sent = {
            (a, b): threading.Event() for a in range(9) for b in range(9) if a != b
        }
        self.mail: dict[tuple[int, int], bytes] = {}

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Return the values of all members."""
        self._values[rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found


def read(rows: Rows) -> list[bytes]:
    return [ctypes.string_at(begin, rows.nbytes) for begin in rows.addresses]


def write(rows: Rows, data: bytes, row: int = 0) -> None:
    assert len(data) == rows.nbytes
    ctypes.memmove(rows.addresses[row], data, len(data))


class ThreadTransport:
    def __init__(self, board: Board, rank: int) -> None:
        self._board = board
        self.rank = rank
        self.replicas = board.replicas
        self._pending = 0
        self.worker = Worker(self._count)
        self.failures: list[str] = []

    def _count(self, more: int) -> int:
        self._pending += more
        return self._pending

    def close(self) -> None:
        self.worker.close()

    def _reduced(self, source: Rows, reduction: int) -> bytes:
        kind = dtype_of(source.dtype)
        found = self._board.exchange(self.rank, read(source))
        rows = [np.frombuffer(row, kind) for member in found for row in member]
        total: bytes = FOLDS[reduction](rows).astype(kind).tobytes()
        return total

    def all_reduce(
        self,
        arrays: Sequence[Pair],
        reduction: int,
        *,
        algorithm: int = -1,
        name: int = 0,
    ) -> None:
        for source, target in arrays:
            total = self._reduced(source, reduction)
            for row in range(len(target.addresses)):
                write(target, total, row)

    def reduce(
        self, source: Rows, target: Rows, reduction: int, root: int, *, name: int = 0
    ) -> None:
        total = self._reduced(source, reduction)
        if self.rank == root:
            write(target, total)

    def reduce_scatter(
        self, source: Rows, target: Rows, reduction: int, *, name: int = 0
    ) -> None:
        total = self._reduced(source, reduction)
        each = len(total) // sum(self.replicas)
        begin = sum(self.replicas[: self.rank]) * each
        write(target, total[begin : begin + target.nbytes])

    def broadcast(
        self,
        row: Rows,
        root: int,
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        write(row, self._board.exchange(self.rank, read(row)[0])[root])

    def all_gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        *,
        name: int = 0,
        prelude_to: Operation | None = None,
    ) -> None:
        write(target, b"".join(self._board.exchange(self.rank, read(source)[0])))

    def gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        found = self._board.exchange(self.rank, read(source)[0])
        if self.rank == root:
            write(target, b"".join(found))

    def scatter(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        whole = self._board.exchange(self.rank, read(source)[0])[root]
        begin = [0, *accumulate(lengths)][self.rank]
        write(target, whole[begin : begin + lengths[self.rank]])

    def all_to_all(self, source: Rows, target: Rows, *, name: int = 0) -> None:
        found = self._board.exchange(self.rank, read(source)[0])
        each = source.nbytes // len(self.replicas)
        begin = self.rank * each
        write(target, b"".join(sent[begin : begin + each] for sent in found))

    def send(self, row: Rows, to: int) -> None:
        self._board.mail[self.rank, to] = read(row)[0]
        self._board.sent[self.rank, to].set()

    def receive(self, row: Rows, source: int) -> None:
        assert self._board.sent[source, self.rank].wait(20)
        write(row, self._board.mail[source, self.rank])

    def barrier(self, name: int = 0) -> None:
        self._board.exchange(self.rank, None)

    def give_up(self, what: str, error: BaseException) -> None:
        self.failures.append(what)

    def accelerate(self, take: Callable[..., None], *_: Any) -> bool:
        return False

    def explain(self) -> Exception:
        raise AssertionError("Without a core there are no shortcuts.")


class Calls(Reductions, Exchanges, PointToPoint):
    """A group of nothing but calls over a transport."""

    def __init__(self, transport: Transport, *, flat: bool) -> None:
        self._use(transport, flat)
        self._prefer("auto")


def results(
    replicas: Sequence[int], member: Callable[[Calls], Any], *, flat: bool
) -> list[Any]:
    """Return what all members return, each of which is a thread."""
    board = Board(replicas)
    found: list[Any] = [None] * len(replicas)

    def live(rank: int) -> None:
        transport = ThreadTransport(board, rank)
        found[rank] = member(Calls(transport, flat=flat))
        transport.close()
        assert not transport.failures

    threads = [
        threading.Thread(target=live, args=(rank,)) for rank in range(len(replicas))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_every_call_goes_over_another_transport_as_well() -> None:
    def member(group: Calls) -> Any:
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
    def member(group: Calls) -> Any:
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
