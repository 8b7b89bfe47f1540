"""Short messages between instances beside their collectives: to meet, and of failures.

Each is JSON. Any thread may send and take them; they are kept until they are asked for.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from time import monotonic, sleep
from typing import Any

import numpy as np

from popdist.engine.hosts.links import Links

Message = dict[str, Any]


class Mail:
    """The messages to this process, and those under way from it."""

    def __init__(self, links: Links, size: int) -> None:
        self._links = links
        self._lock = Lock()
        self._taking = Lock()
        self._received: dict[str, list[Message]] = defaultdict(list)
        # How many messages have been sent to each instance, and received.
        self._sent_counts = np.zeros(size, np.int64)
        self._received_count = 0

    def send(self, instance: int, message: Message) -> None:
        """Send a message to an instance, without waiting until it has come.

        "late" messages may be sent once others have begun to end, and are not counted.

        Raises:
            LinkError: The instance cannot be reached.
        """
        self._links.post(instance, json.dumps(message).encode())
        with self._lock:
            self._sent_counts[instance] += not message.get("late")

    def take(self) -> None:
        """Receive the messages that have arrived, and let sends make progress."""
        if not self._taking.acquire(blocking=False):
            return
        try:
            while (taken := self._links.take()) is not None:
                source, data = taken
                message: Message = {**json.loads(data), "from": source}
                with self._lock:
                    self._received[_key(message)].append(message)
                    self._received_count += not message.get("late")
        finally:
            self._taking.release()

    def of(self, kind: str, group: str = "") -> list[Message]:
        """Return and forget the received messages of this kind for a group."""
        key = f"{kind} {group}"
        if key not in self._received:
            return []
        with self._lock:
            return self._received.pop(key, [])

    def begin_end(self) -> Callable[[], int | None]:
        """Announce that only late messages are sent from now on; see Links.begin_end().

        Returns:
            A function that returns how many messages all instances have sent here, once
            all have come to this, and None before.
        """
        with self._lock:
            sent = self._sent_counts.copy()
        return self._links.begin_end(sent)

    def has_received(self, count: int) -> bool:
        """Return whether so many messages have come, and all own ones are sent."""
        return self._received_count >= count and not self._links.is_sending()

    def flush(self, seconds: float) -> None:
        """Wait so long until all that was sent is on its way."""
        until = monotonic() + seconds
        while self._links.is_sending() and monotonic() < until:
            self.take()
            sleep(0.001)


def _key(message: Message) -> str:
    return f"{message['kind']} {message.get('group', '')}"
