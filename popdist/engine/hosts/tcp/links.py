"""Links by TCP, for jobs that no MPI was started with.

Instance 0 listens at an address that all instances know. The others connect to it, and
tell it where they listen themselves. Two of them connect when one first sends something
to the other.
"""

import json
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from time import monotonic, sleep

import numpy as np
from numpy.typing import NDArray

from popdist.engine import _core
from popdist.engine.handle import Helper
from popdist.engine.hosts.links import LinkError
from popdist.engine.hosts.tcp.handshake import StrangerError, answer, greet

# Tags of short messages: of Links.post(); of gather(); of instances that end, and how
# many messages each gets from all; of an instance that has died.
_POSTED, _GATHERED, _ENDED, _DIED = 1, 2, 3, 4
_MOST_TAG = (1 << 31) - 1
_PAUSE = 0.002
# How often all connections are checked for hosts that do not answer.
_CHECK_SECONDS = 0.1
# How long an instance that does not accept a connection is taken for a live one.
_CONNECT_SECONDS = 5.0

Address = tuple[str, int]


class TcpLinks:
    """Links by sockets, which all belong to this job."""

    def __init__(
        self,
        rank: int,
        size: int,
        root: Address,
        key: bytes,
        look_up: Callable[[], tuple[str, int, bytes]] | None = None,
    ) -> None:
        """Connect to instance 0, and return once all instances have.

        Args:
            root: The address at which instance 0 listens.
            key: The secret of the job.
            look_up: Returns another address and key if these may be out of date.
        """
        self._rank, self._size, self._key = rank, size, key
        self._core = _core.TcpLinks(rank, size)
        self.table = self._core.table()
        self.most_tag = _MOST_TAG
        self.failed: set[int] = set()
        os.register_at_fork(after_in_child=self._disown)
        # Held while this process connects to others.
        self._connecting = Lock()
        self._addresses: list[Address] = []
        self._checked_at = 0.0
        # How many short messages all have sent here, once they have come to their end.
        self._count: int | None = None
        if rank == 0:
            self._listener = _listener(root)
        else:
            self._connect_to_root(root, look_up)
        Helper(target=self._accept, name="popdist accepts", daemon=True).start()
        own = self._listener.getsockname()[:2]
        texts = self.gather(json.dumps(own).encode())
        self._addresses = [tuple(json.loads(text)) for text in texts]

    def gather(self, data: bytes) -> list[bytes]:
        if self._rank == 0:
            all_data = {0: data}
            while len(all_data) < self._size:
                source, theirs = self._await(_GATHERED)
                all_data[source] = theirs
            ordered = [all_data[instance] for instance in range(self._size)]
            text = json.dumps([one.hex() for one in ordered]).encode()
            for instance in range(1, self._size):
                self._core.post(instance, _GATHERED, text)
            return ordered
        self._core.post(0, _GATHERED, data)
        return [bytes.fromhex(one) for one in json.loads(self._await(_GATHERED)[1])]

    def post(self, instance: int, data: bytes) -> None:
        self._connect(instance)
        try:
            self._core.post(instance, _POSTED, data)
        except (ConnectionResetError, BrokenPipeError):
            # The instance has died or ended: it needs no messages any more.
            return
        except OSError as error:
            raise LinkError(error.errno or 0) from error

    def take(self) -> tuple[int, bytes] | None:
        taken = self._core.take(_POSTED)
        if monotonic() - self._checked_at > _CHECK_SECONDS:
            self._checked_at = monotonic()
            self._core.check_answers()
        while (news := self._core.take(_DIED)) is not None:
            self.failed.add(int(news[1]))
        failed = set(self._core.failed()) - self.failed
        self.failed |= failed
        if self._rank == 0:
            self._tell_deaths(failed)
        return taken

    def is_sending(self) -> bool:
        return self._core.posted() > 0

    def prepare(
        self,
        instance: int,
        count_deaths: Callable[[], int],
        is_over: Callable[[], bool],
    ) -> None:
        """Connect to the instance, if this has not been done."""
        self._connect(instance)

    def explain(self, error: int) -> str:
        return os.strerror(error)

    def begin_end(self, sent: NDArray[np.int64]) -> Callable[[], int | None]:
        """Let instance 0 add up the counts of all, and tell each instance its sum."""
        if self._rank:
            with suppress(OSError):
                self._core.post(0, _ENDED, sent.tobytes())
            return self._count_from_root
        totals, missing = sent.copy(), set(range(1, self._size))

        def count() -> int | None:
            while (taken := self._core.take(_ENDED)) is not None:
                source, data = taken
                totals[:] += np.frombuffer(data, np.int64)
                missing.discard(source)
                if not missing:
                    for instance in range(1, self._size):
                        text = b"%d" % totals[instance]
                        self._core.post(instance, _ENDED, text)
            return None if missing else int(totals[0])

        return count

    def close(self) -> None:
        """Tell all connected processes that this one has not died; it ends now."""
        self._core.say_goodbye()
        while self.is_sending() and not self._core.failed():
            self._core.take(_POSTED)
            sleep(_PAUSE)

    def _count_from_root(self) -> int | None:
        if self._count is None and (taken := self._core.take(_ENDED)) is not None:
            self._count = int(taken[1])
        return self._count

    def _tell_deaths(self, instances: Iterable[int]) -> None:
        """Tell all others who has died: they may have no connection to it."""
        for instance in instances:
            for other in range(1, self._size):
                if other not in self.failed:
                    with suppress(OSError):  # it has died, too
                        self._core.post(other, _DIED, b"%d" % instance)

    def _disown(self) -> None:
        """Close the sockets in a forked child: they would hide the parent's death."""
        self._core.disown()
        self._listener.close()

    def _await(self, tag: int) -> tuple[int, bytes]:
        while (taken := self._core.take(tag)) is None:
            sleep(_PAUSE)
        return taken

    def _connect_to_root(
        self,
        root: Address,
        look_up: Callable[[], tuple[str, int, bytes]] | None,
    ) -> None:
        """Connect once instance 0 listens, and listen at the address on the way."""
        while True:
            try:
                connection = self._connected(0, root)
                break
            except (OSError, StrangerError):
                # It has not begun to listen, or another program has had the port.
                sleep(0.05)
                if look_up is not None:
                    host, port, self._key = look_up()
                    root = host, port
        self._listener = _listener((connection.getsockname()[0], 0))
        self._core.add(0, connection.detach())

    def _connected(self, instance: int, address: Address) -> socket.socket:
        connection = socket.create_connection(address, _CONNECT_SECONDS)
        try:
            greet(connection, self._key, self._rank, instance)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, instance: int) -> None:
        if self._core.is_ready(instance):
            return
        with self._connecting:
            if self._core.is_ready(instance):
                return
            try:
                connection = self._connected(instance, self._addresses[instance])
                self._core.add(instance, connection.detach())
            except (OSError, StrangerError):
                self._core.note_failed(instance)

    def _accept(self) -> None:
        """Let other instances connect, each in a thread: one may be slow."""
        with suppress(OSError):  # it is closed with the process
            while True:
                connection, _ = self._listener.accept()
                Helper(
                    target=self._answer,
                    args=(connection,),
                    name="popdist answers",
                    daemon=True,
                ).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            instance = answer(connection, self._key, self._rank, self._size)
        except (OSError, StrangerError):
            connection.close()
            return
        self._core.add(instance, connection.detach())


def _listener(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=1024)
