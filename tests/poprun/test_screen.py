"""What is drawn at the cursor of a terminal, and drawn again."""

import pytest

from poprun.screen import ERASE, Screen


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
