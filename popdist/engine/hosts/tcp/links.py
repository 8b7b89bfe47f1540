"""Links by TCP, for jobs that no MPI was started with.

Instance 0 listens at an address that all instances know. The others connect to it, and
tell it where they listen themselves. Two of them connect when one first sends something
to the other.
"""

import errno
import json
import os
import socket
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from time import monotonic, sleep

import numpy as np
from numpy.typing import NDArray

from popdist.engine import _core
from popdist.engine.hosts.links import LinkError, unanswered
from popdist.engine.hosts.tcp.handshake import SILENT_SECONDS, StrangerError, greet
from popdist.engine.hosts.tcp.listener import (
    Address,
    Listener,
    TcpRoot,
    listen,
    listen_as_root,
)
from popdist.engine.meet.meeting import name_instances
from popdist.errors import PeerLostError

# Tags of short messages: of Links.post(); of gather(); of instances that end, and how
# many messages each gets from all; of an instance that has died.
_POSTED, _GATHERED, _ENDED, _DIED = 1, 2, 3, 4
_MOST_TAG = (1 << 31) - 1
_PAUSE = 0.002
# How often all connections are checked for hosts that do not answer.
_CHECK_SECONDS = 0.5
# Errors of a host that answers nothing.
_UNREACHABLE = errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN
# How long the process at instance 0's address may take for its proof: it may be one of
# an earlier attempt, or another program.
_ROOT_SECONDS = 10.0


class AbandonedError(Exception):
    """Links that are being started are needed no more."""


class TcpLinks:
    """Links by sockets, which all belong to this job."""

    def __init__(
        self,
        rank: int,
        size: int,
        root: TcpRoot,
        look_up: Callable[[], TcpRoot] | None = None,
        is_abandoned: Callable[[], bool] = lambda: False,
        failed: dict[int, int] | None = None,
    ) -> None:
        """Connect to instance 0, and return once all instances have.

        Args:
            look_up: Returns another root if this one may be out of date.
            is_abandoned: Returns whether the links are needed no more.
            failed: Gets the instances that have died, as the attribute of this name.

        Raises:
            AbandonedError: They are needed no more.
            ArenaError: Instance 0 cannot listen.
            PeerLostError: An instance has died.
        """
        self._rank, self._size, self._key = rank, size, root.key
        self._core = _core.TcpLinks(rank, size)
        self.table = self._core.table()
        self.most_tag = _MOST_TAG
        self.failed: dict[int, int] = {} if failed is None else failed
        _all_links.add(self)
        self._is_abandoned = is_abandoned
        self._listener: Listener | None = None
        # Each is held while this process connects to that instance.
        self._connecting = [Lock() for _ in range(size)]
        self._addresses: list[Address] = []
        self._checked_at = 0.0
        # How many short messages all have sent here, once they have come to their end.
        self._count: int | None = None
        try:
            if rank == 0:
                listening = root.listener or listen_as_root(root)
            else:
                listening = self._connect_to_root(root, look_up)
            own = listening.getsockname()[:2]
            connect_to = self._core.add
            self._listener = Listener(listening, self._key, rank, size, connect_to)
            texts = self.gather(json.dumps(own).encode())
        except BaseException:
            self.abandon()
            raise
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
                # It may have died since; its death is found like any later one.
                with suppress(ConnectionError):
                    self._core.post(instance, _GATHERED, text)
            return ordered
        # If instance 0 has died, the wait for its answer finds that.
        with suppress(ConnectionError):
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
        self._find_deaths()
        return taken

    def is_sending(self) -> bool:
        return self._core.posted() > 0

    def prepare(
        self,
        instance: int,
        count_deaths: Callable[[], int],
        is_over: Callable[[], bool],
    ) -> bool:
        """Connect to the instance, if this has not been done."""
        self._connect(instance, is_over)
        return bool(self._core.is_ready(instance))

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
                        with suppress(OSError):  # it has died meanwhile
                            self._core.post(instance, _ENDED, text)
            return None if missing else int(totals[0])

        return count

    def close(self) -> None:
        """Tell all connected processes that this one has not died; it ends now."""
        self._core.say_goodbye()
        while self.is_sending() and not self._core.failed():
            self._core.take(_POSTED)
            sleep(_PAUSE)

    def abandon(self) -> None:
        """Close all connections at once: the others take this process for dead."""
        if self._listener is not None:
            self._listener.close()
        self._core.shut()

    def disown(self) -> None:
        """Close the parent's sockets in a forked child: they would hide its death."""
        self._core.disown()
        if self._listener is not None:
            self._listener.disown()

    def _count_from_root(self) -> int | None:
        if self._count is None and (taken := self._core.take(_ENDED)) is not None:
            self._count = int(taken[1])
        return self._count

    def _find_deaths(self) -> None:
        if monotonic() - self._checked_at > _CHECK_SECONDS:
            self._checked_at = monotonic()
            self._core.check_answers()
        while (news := self._core.take(_DIED)) is not None:
            instance, is_silent = json.loads(news[1])
            self.failed.setdefault(instance, is_silent * SILENT_SECONDS)
        failed = [one for one in self._core.failed() if one[0] not in self.failed]
        for instance, is_silent in failed:
            self.failed[instance] = is_silent * SILENT_SECONDS
        if self._rank == 0:
            self._tell_deaths(failed)

    def _tell_deaths(self, failed: Sequence[tuple[int, bool]]) -> None:
        """Tell all others who has died: they may have no connection to it."""
        for death in failed:
            for other in range(1, self._size):
                if other not in self.failed:
                    with suppress(OSError):  # it has died, too
                        self._core.post(other, _DIED, json.dumps(death).encode())

    def _await(self, tag: int) -> tuple[int, bytes]:
        """Return a message that comes while the instances connect.

        Raises:
            PeerLostError: An instance has died.
        """
        while (taken := self._core.take(tag)) is None:
            self._check_abandoned()
            self._check_deaths()
            sleep(_PAUSE)
        return taken

    def _check_deaths(self) -> None:
        self._find_deaths()
        if self.failed:
            lost = sorted(self.failed)
            raise PeerLostError(
                f"{name_instances(lost).capitalize()} ended, or did not answer, "
                "before all instances had connected to each other by TCP.",
                lost,
            )

    def _connect_to_root(
        self, root: TcpRoot, look_up: Callable[[], TcpRoot] | None
    ) -> socket.socket:
        """Connect once instance 0 listens, and listen at the address on the way.

        Returns:
            The listening socket.

        Raises:
            PeerLostError: Its host answers nothing for longer than the limit.
        """
        silence, looked_at = 0.0, monotonic()
        while True:
            self._check_abandoned()
            is_over = partial(_is_past, monotonic() + _ROOT_SECONDS)
            try:
                connection = self._connected(0, (root.host, root.port), is_over)
                break
            except (OSError, StrangerError) as error:
                # A process that is stopped ends the wait later than a silent host.
                is_silent = not is_over() and _is_silence(error)
                # With the pause before it: a router may answer at once. No more, if
                # this process was stopped meanwhile.
                now = monotonic()
                since = min(now - looked_at, SILENT_SECONDS)
                silence, looked_at = (silence + since if is_silent else 0.0), now
                if silence >= root.silence_limit:
                    self._core.note_failed(0, True)
                    self._find_deaths()
                    other = f"Instance 0 at {root.host}:{root.port}"
                    own = f"instance {self._rank} on {socket.gethostname()}"
                    raise unanswered(other, own, silence, 0) from None
                # It has not begun to listen, or another program has had the port.
                sleep(0.05)
                if look_up is not None:
                    root = look_up()
                    self._key = root.key
        listening = listen((connection.getsockname()[0], 0))
        self._core.add(0, connection.detach())
        return listening

    def _check_abandoned(self) -> None:
        if self._is_abandoned():
            raise AbandonedError

    def _connected(
        self, instance: int, address: Address, is_over: Callable[[], bool]
    ) -> socket.socket:
        connection = socket.create_connection(address, SILENT_SECONDS)
        try:
            greet(connection, self._key, self._rank, instance, is_over)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(
        self, instance: int, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Connect to an instance unless it has died; blocks while it is stopped.

        Raises:
            LinkError: This process cannot make a connection.
        """
        if self._core.is_ready(instance):
            return
        with self._connecting[instance]:
            until = monotonic() + SILENT_SECONDS
            while not (self._core.is_ready(instance) or is_over()):
                try:
                    connection = self._connected(
                        instance, self._addresses[instance], is_over
                    )
                    self._core.add(instance, connection.detach())
                except (OSError, StrangerError) as error:
                    if not is_over():
                        self._examine_failure(instance, error, until)

    def _examine_failure(
        self, instance: int, error: OSError | StrangerError, until: float
    ) -> None:
        """Note the death of an instance if a failed attempt to connect shows it.

        Args:
            until: How long a host may answer nothing.

        Raises:
            LinkError: The attempt says nothing about the instance.
        """
        # Its listener ends with its process; another program may have the port then.
        if isinstance(error, ConnectionRefusedError | StrangerError):
            self._core.note_failed(instance, False)
        elif isinstance(error, TimeoutError) or (
            # A router may say so for a moment.
            _is_silence(error) and monotonic() > until
        ):
            self._core.note_failed(instance, True)
        elif isinstance(error, ConnectionError) or _is_silence(error):
            # It has died, had too many connections of others, or may answer yet.
            sleep(0.05)
        else:
            raise LinkError(error.errno or 0) from error


def _is_silence(error: OSError | StrangerError) -> bool:
    """Return whether a host has not answered an attempt to connect to it."""
    if isinstance(error, TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in _UNREACHABLE


_all_links: "weakref.WeakSet[TcpLinks]" = weakref.WeakSet()


def _disown_all() -> None:
    for links in list(_all_links):
        links.disown()


os.register_at_fork(after_in_child=_disown_all)


def _is_past(moment: float) -> bool:
    return monotonic() > moment
