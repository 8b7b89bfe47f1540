"""The screen of `popctl top`, by textual.

Only the lines that are in sight are drawn, and only when the job has sent something:
64 instances must not take a CPU.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from poprun.popctl.job_table import Rates, View, instance_lines, rates_of, summary
from poprun.popctl.jobs import JobConnection, explain_end
from poprun.texts.tables import cut
from poprun.wire import protocol

PLAIN = Style()
KEYS = "q quits, arrows scroll"


class Lines(ScrollView, can_focus=True):
    """A list of lines; it draws only the visible ones."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: Sequence[str] = ()

    def show(self, lines: Sequence[str]) -> None:
        self._lines = lines
        size = Size(max(map(len, lines), default=0), len(lines))
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        width = self.size.width
        if top + y >= len(self._lines):
            return Strip.blank(width)
        strip = Strip([Segment(self._lines[top + y], PLAIN)])
        return strip.crop_extend(left, left + width, PLAIN)


class TopScreen(App[str]):
    """One job, until it ends or the user leaves; it returns what to say then."""

    CSS = """
    Screen { layout: vertical; background: ansi_default; color: ansi_default; }
    Static { height: 1; background: ansi_default; color: ansi_default; }
    #head { text-style: reverse; }
    #program { text-style: bold; }
    #keys { text-style: dim; }
    Lines { height: 1fr; background: ansi_default; scrollbar-size-horizontal: 0;
            scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "leave", "Quit"),
        ("ctrl+c", "leave", "Quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, connection: JobConnection) -> None:
        super().__init__(ansi_color=True)
        self._connection = connection
        # The last description of the job, and its rates.
        self._before: View | None = None
        self._rates: Mapping[int, Rates] = {}

    def compose(self) -> ComposeResult:
        for name in ("program", "summary", "blank", "head"):
            yield Static("", id=name, markup=False)
        yield Lines()
        yield Static(KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(Lines).focus()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._connection.fileno(), self._on_readable)

    def action_leave(self) -> None:
        self.exit("")

    def _on_readable(self) -> None:
        messages = self._connection.take()
        views = [m for m in messages or () if m[0] == protocol.JOB_SHOWN]
        if views:
            self._show(json.loads(views[-1][1][0]))
        if messages is None or len(views) < len(messages):
            self._end(messages[-1] if messages else None)

    def _end(self, message: tuple[int, list[bytes]] | None) -> None:
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        self.exit(f"{explain_end(self._connection, message)}\n")

    def _show(self, job: View) -> None:
        self._rates = rates_of(job, self._before)
        self._before = job
        self._draw(job, self.size)

    def on_resize(self, event: Resize) -> None:
        if self._before is not None:
            self._draw(self._before, event.size)

    def _draw(self, job: View, screen: Size) -> None:
        width, height = screen
        texts = [cut(line, width) for line in summary(job, self._rates)]
        head, *lines = instance_lines(job, self._rates, width)
        texts.append(head.ljust(width)[:width])
        for name, text in zip(("program", "summary", "head"), texts, strict=True):
            self.query_one(f"#{name}", Static).update(text)
        # The blank line gives way to instances.
        is_low = len(lines) + len(self.query(Static)) > height
        self.query_one("#blank", Static).display = not is_low
        self.query_one(Lines).show(lines)


def show(connection: JobConnection) -> str:
    """Show a job until it ends or the user leaves; return what to say then."""
    return TopScreen(connection).run() or ""
