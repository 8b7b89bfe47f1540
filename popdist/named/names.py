"""The names of calls, which member 0 sends to the others for errors to show.

The core compares calls by the numbers of their names. Before its first call with a new
name, member 0 broadcasts the name, in a call that has a name of its own.
"""

import re

import numpy as np

from popdist.engine.group import Group
from popdist.engine.spec.operations import number_of

_INTRODUCTION = "\0introduction"
# The number of a call that introduces a name.
INTRODUCES = number_of(_INTRODUCTION)

_NUMBER_BYTES, _TEXT_BYTES = 8, 120
# All members forget all names after so many, so that these take no more memory.
_MOST_NAMES = 4096


class Names:
    """The names of tensors that all members of a group know."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._texts: dict[int, str] = {}

    def introduce(self, name: str | None, number: int) -> None:
        """Send a name to the others, as member 0, if they do not know it."""
        if not number or number in self._texts:
            return
        text = shown(name)
        encoded = number.to_bytes(_NUMBER_BYTES, "little") + text.encode()
        packet = np.zeros(_NUMBER_BYTES + _TEXT_BYTES, np.uint8)
        packet[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        self._group.broadcast(packet, 0, out=packet, name=_INTRODUCTION)
        self._remember(number, text)

    def receive_introduction(self) -> None:
        """Take part in the introduction that member 0 makes."""
        packet = np.zeros(_NUMBER_BYTES + _TEXT_BYTES, np.uint8)
        self._group.broadcast(packet, 0, out=packet, name=_INTRODUCTION)
        number, text = packet[:_NUMBER_BYTES], packet[_NUMBER_BYTES:]
        self._remember(
            int.from_bytes(number.tobytes(), "little"),
            text.tobytes().rstrip(b"\0").decode(),
        )

    def of(self, number: int) -> str:
        """Return the name that a number stands for, as errors show it."""
        return self._texts.get(number, shown(None))

    def put_into(self, message: str, name: str | None) -> str:
        """Replace the numbers in a message of the engine by what they stand for.

        Args:
            name: The call that was to be made, maybe after its introduction.
        """
        texts = {**self._texts, INTRODUCES: f"{shown(name)}, before it"}
        return re.sub(
            "[0-9a-f]{16}",
            lambda found: texts.get(int(found[0], 16), found[0]),
            message,
        )

    def _remember(self, number: int, text: str) -> None:
        if len(self._texts) >= _MOST_NAMES:
            self._texts.clear()
        self._texts[number] = text


def shown(name: str | None) -> str:
    """Return a name as errors show it: in ASCII, and not too long."""
    if name is None:
        return "a call without a name"
    text = ascii(name)
    return text if len(text) <= 100 else f"{text[:96]}...'"
