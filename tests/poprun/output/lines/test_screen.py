"""What is drawn at the cursor of a terminal, and drawn again."""

import tracemalloc

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from named_console import NamedConsole

from poprun.output.lines.pending_stream import PendingStream
from poprun.output.lines.screen import ERASE, Screen
from poprun.output.lines.tags import Prefix


def test_the_status_goes_away_before_a_line_and_comes_back_after_it() -> None:
    screen = Screen()

    assert screen.show(b"2 running") == b"2 running"
    assert screen.write(b"one\n") == ERASE + b"one\n2 running"
    assert screen.show(b"1 running") == ERASE + b"1 running"
    assert screen.show(b"") == ERASE


def test_a_status_that_is_the_same_is_not_drawn_again() -> None:
    screen = Screen()
    screen.show(b"2 running")

    assert screen.show(b"2 running") == b""


def test_there_is_no_status_while_a_line_is_unfinished() -> None:
    screen = Screen()
    screen.show(b"2 running")

    assert screen.write(b"Name? ") == ERASE + b"Name? "
    assert screen.show(b"1 running") == b""
    assert screen.write(b"Ann\n") == b"Ann\n1 running"


def test_the_status_is_cut_before_the_last_column() -> None:
    assert Screen(columns=8).show(b"2 running") == b"2 runni"


@pytest.mark.parametrize(
    "moves", [b"\x1b[A", b"\x1b[2J", b"\x1b[10;1H", b"\x1b7", b"\x1bM", b"\x1b[?1049h"]
)
def test_where_a_program_moves_the_cursor_nothing_is_drawn_any_more(
    moves: bytes,
) -> None:
    screen = Screen()
    screen.show(b"2 running")

    assert screen.write(moves + b"one\n") == ERASE + moves + b"one\n"
    assert screen.show(b"1 running") == b""


@pytest.mark.parametrize(
    "harmless",
    [b"\x1b[31m", b"\x1b[38;5;9m", b"\x1b[K", b"\x1b[?25l", b"\x1b]0;title\x07"],
)
def test_colours_and_titles_do_not_move_the_cursor(harmless: bytes) -> None:
    screen = Screen()
    screen.show(b"busy")

    assert screen.write(harmless + b"one\n") == ERASE + harmless + b"one\nbusy"


def test_a_bar_is_drawn_again_below_lines() -> None:
    screen = Screen()
    screen.write(b"\r10%\r20%")

    assert screen.can_redraw
    assert screen.write_above(b"one\n") == ERASE + b"one\n20%"
    assert screen.write_above(b"bye") == ERASE + b"bye\n20%"


def test_a_bar_that_returns_after_each_state_is_one_too() -> None:
    screen = Screen()
    screen.write(b"10%\r20%\r")

    assert screen.can_redraw
    assert screen.write_above(b"one\n") == ERASE + b"one\n20%\r"


def test_a_prompt_is_not_drawn_again() -> None:
    screen = Screen()
    screen.write(b"Name? ")

    assert not screen.can_redraw


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("█" * 20, True),
        ("█" * 21, False),
        ("语" * 10, True),
        ("语" * 11, False),
        ("\x1b[32m" + "x" * 20 + "\x1b[0m", True),
        ("a\tb", False),
    ],
)
def test_a_bar_that_is_wider_than_the_terminal_is_not_drawn_again(
    text: str, fits: bool
) -> None:
    screen = Screen(columns=20)
    screen.write(b"\r" + text.encode())

    assert screen.can_redraw is fits


def test_a_bar_that_was_wiped_leaves_the_line_free() -> None:
    screen = Screen()
    screen.write(b"\r100%")
    assert screen.mid_line
    screen.write(b"\r    \r")
    assert not screen.mid_line
    screen.write(b"\r100%")
    screen.write(b"\r\x1b[K")
    assert not screen.mid_line


COLUMNS, ROWS = 20, 100


def seen(data: bytes) -> tuple[list[str], int, int]:
    """Return what a terminal shows, and where its cursor is."""
    screen = pyte.Screen(COLUMNS, ROWS)
    screen.set_mode(pyte.modes.LNM)  # as terminals do with what programs write
    pyte.ByteStream(screen).feed(data)
    lines = [line.rstrip() for line in screen.display]
    return lines, screen.cursor.x, screen.cursor.y


pieces = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *(b"x", b"one\n", b"\n", b"\r", b"\r10%", b"20%\r", b"\r    \r"),
                *(b"\r\n", b"\x1b[31mred\x1b[0m", b"\r\x1b[K", b"\x1b[K", b"y" * 19),
                *(b"\r" + b"#" * 20, b" "),
            ]
        ),
        st.sampled_from([0.0, 0.06]),
        st.sampled_from([None, b"busy", b"very busy"]),
    ),
    max_size=30,
)


@given(pieces)
def test_a_status_changes_nothing_that_a_program_draws(
    pieces: list[tuple[bytes, float, bytes | None]],
) -> None:
    console = NamedConsole(Screen(COLUMNS))
    console.add("a", PendingStream())
    now, drawn, whole = 0.0, b"", b""
    for data, pause, status in pieces:
        now += pause
        console.tick(now)
        console.bring("a", data, now)
        whole += data
        if status is not None:
            console.show(status)
    console.end("a")
    console.show(b"")
    drawn = console.take()

    assert seen(drawn) == seen(whole)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), max_size=30))
def test_bars_and_lines_of_two_end_as_lines_of_their_own(
    steps: list[tuple[str, int]],
) -> None:
    """Each draws a bar, and says a line now and then."""
    console = NamedConsole(Screen(COLUMNS))
    for name in "ab":
        tag = f"[{name}]".encode()
        console.add(name, PendingStream(Prefix(tag, on_terminal=True)))
        console.add(
            name + " lines",
            PendingStream(Prefix(tag, on_terminal=True)),
        )
    now, lines = 0.0, []
    for name, number in steps:
        now += 0.06
        console.tick(now)
        console.bring(name, b"\r%d0%%" % number, now)
        if number == 9:
            lines.append(f"[{name}]line of {name}")
            console.bring(name + " lines", f"line of {name}\n".encode(), now)
    for name in "ab":
        console.bring(name, b"\r100%\n", now)
        lines.append(f"[{name}]100%")
    for name in ("a", "b", "a lines", "b lines"):
        console.end(name)

    shown, _, row = seen(console.take())
    assert sorted(shown[:row]) == sorted(lines)
    assert row == len(lines)


@pytest.mark.parametrize("end", [b"\x1b[?25h", b"\x1b[0m", b"\x1b]0;done\x07"])
def test_an_end_that_shows_nothing_leaves_the_line_free(end: bytes) -> None:
    screen = Screen()
    screen.show(b"status")

    assert screen.write(b"100%\n" + end) == ERASE + b"100%\n" + end + b"status"
    assert not screen.mid_line


def test_after_ends_that_show_nothing_the_prompt_is_at_the_beginning_of_a_line() -> (
    None
):
    console = NamedConsole(Screen(COLUMNS))
    for name in "ab":
        mark = Prefix(f"[{name}]".encode(), on_terminal=True)
        console.add(name, PendingStream(mark))
        console.bring(name, b"\x1b[?25l", 0.0)
    console.tick(1.0)
    for name in "ab":
        console.bring(name, b"\r\x1b[2K100%\r\n", 1.0)
        console.bring(name, b"\x1b[?25h", 1.0)
    console.tick(2.0)
    console.say(b"poprun: done\n")
    for name in "ab":
        console.end(name, 3.0)

    shown, column, row = seen(console.take())
    assert shown[:3] == ["[a]100%", "[b]100%", "poprun: done"]
    assert (column, row) == (0, 3)


def test_a_very_long_line_of_states_needs_no_memory_for_each() -> None:
    screen, line = Screen(), b"10%\r" * 500_000
    tracemalloc.start()
    try:
        assert screen.write(line) == line
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert screen.mid_line
    assert screen.write(b"\r\x1b[K") == b"\r\x1b[K"
    assert not screen.mid_line
