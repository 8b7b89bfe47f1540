"""A console whose streams have names, and what it has written."""

from typing import Any

from poprun.output.lines.console import Console
from poprun.output.lines.pending_stream import PendingStream
from poprun.output.lines.screen import Screen


class NamedConsole(Console):
    def __init__(self, screen: Screen | None = None, **options: Any) -> None:
        super().__init__(self._take_in, screen, **options)
        self._by_name: dict[str, PendingStream] = {}
        # The name of the stream that was written last, and what was written.
        self.written: list[tuple[str, bytes]] = []

    def add(self, name: str, stream: PendingStream) -> None:
        self._by_name[name] = stream
        self.open(stream)

    def bring(self, name: str, data: bytes, now: float) -> None:
        self.feed(self._by_name[name], data, now)

    def end(self, name: str, now: float = 0.0) -> None:
        self.close(self._by_name[name], now)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(data for _, data in self.written)
        self.written.clear()
        return data

    def _take_in(self, data: bytes) -> None:
        names = [n for n, s in self._by_name.items() if s is self.last_stream]
        self.written.append(("".join(names), data))
