"""Short messages between instances beside their collectives: to meet, and of failures.

Each is JSON. Any thread may send and take them; they are kept until they are asked for.
"""

import json
from collections import defaultdict
from contextlib import suppress
from threading import Lock
from time import monotonic, sleep
from typing import Any

import numpy as np

# The tag of all of them, and the longest that there may be.
_TAG = 1
_MOST_BYTES = 1 << 20

Message = dict[str, Any]


class Mail:
    """The messages to this process, and those under way from it."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm
        self._lock = Lock()
        self._taking = Lock()
        self._received: dict[str, list[Message]] = defaultdict(list)
        # Requests of messages, with what they send.
        self._sending: list[tuple[Any, object]] = []
        # How many messages have been sent to each instance, and received.
        self._sent_counts = np.zeros(comm.size, np.int64)
        self._received_count = 0
        # The instances that MPI says have died.
        self.failed: set[int] = set()

    def send(self, instance: int, message: Message) -> None:
        """Send a message to an instance, without waiting until it has come.

        What is "late" may be sent once others have begun to end, and does not count.
        """
        data = np.frombuffer(json.dumps(message).encode(), np.uint8)
        request = self._comm.Isend(data, instance, _TAG)
        with self._lock:
            self._sending.append((request, data))
            self._sent_counts[instance] += not message.get("late")

    def take(self) -> None:
        """Receive what has come, and help along what is under way."""
        if not self._taking.acquire(blocking=False):
            return
        try:
            with self._lock:
                self._sending = [
                    one for one in self._sending if not self._is_sent(one[0])
                ]
            while (message := self._probe()) is not None:
                with self._lock:
                    self._received[_key(message)].append(message)
                    self._received_count += not message.get("late")
        except self._mpi.Exception:
            self._note_failed()
        finally:
            self._taking.release()

    def _is_sent(self, request: Any) -> bool:
        """Return whether a message is on its way; also if nothing can send it."""
        try:
            sent: bool = request.Test()
        except self._mpi.Exception:
            return True
        return sent

    def _note_failed(self) -> None:
        """Learn from MPI which processes have died, if it tells that.

        Then it lets messages from all others come again.
        """
        with suppress(self._mpi.Exception, AttributeError, NotImplementedError):
            failed = self._comm.Get_failed()
            every = self._comm.Get_group()
            self._comm.Ack_failed(failed.Get_size())
            ranks = range(failed.Get_size())
            self.failed |= set(failed.Translate_ranks(list(ranks), every))

    def of(self, kind: str, group: str = "") -> list[Message]:
        """Return and forget what has been received of this kind for a group."""
        key = f"{kind} {group}"
        if key not in self._received:
            return []
        with self._lock:
            return self._received.pop(key, [])

    def start_count(self) -> tuple[Any, Any]:
        """Begin to count what all instances have sent here; all must come to this.

        Returns:
            The request, and where the count is once it is done. None may be sent later.
        """
        count = np.empty(1, np.int64)
        with self._lock:
            sent = self._sent_counts.copy()
        return self._comm.Ireduce_scatter_block(sent, count), count

    def has_received(self, count: int) -> bool:
        """Return whether so many messages have come, and all own ones are sent."""
        return self._received_count >= count and not self._sending

    def flush(self, seconds: float) -> None:
        """Wait so long until all that was sent is on its way."""
        until = monotonic() + seconds
        while self._sending and monotonic() < until:
            self.take()
            sleep(0.001)

    def _probe(self) -> Message | None:
        status = self._mpi.Status()
        message = self._comm.Improbe(self._mpi.ANY_SOURCE, _TAG, status)
        if message is None:
            return None
        length = status.Get_count(self._mpi.BYTE)
        data = np.empty(length, np.uint8)
        message.Recv([data, self._mpi.BYTE])
        received: Message = json.loads(data.tobytes())
        received["from"] = status.Get_source()
        return received


def _key(message: Message) -> str:
    return f"{message['kind']} {message.get('group', '')}"
