import pytest

from poprun.output.terminal import clock
from poprun.texts.tables import cut, table


def test_columns_are_as_wide_as_their_longest_cell_and_lines_end_at_the_width() -> None:
    rows = [("1", "two\nlines"), ("22222", "\x1b[31m" + "x" * 9)]

    assert table(("A", "B"), rows) == (
        "A      B\n1      two\\nlines\n22222  \\x1b[31mxxxxxxxxx\n"
    )
    assert table(("A", "B"), rows, 12).splitlines()[1] == "1      two\\…"


def test_numbers_end_in_one_column() -> None:
    rows = [("a", "1"), ("bb", "100")]

    assert table(("", "n"), rows, numbers={1}) == "      n\na     1\nbb  100\n"


def test_what_fits_is_not_cut() -> None:
    assert cut("four", 4) == "four"
    assert cut("five5", 4) == "fiv…"
    assert cut("any", 0) == "any"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.9, "0:59"),
        (61, "1:01"),
        (3661, "1:01:01"),
        (86400 * 3 + 7200, "3 d 2 h"),
    ],
)
def test_a_time_span_is_short(seconds: float, text: str) -> None:
    assert clock(seconds) == text
