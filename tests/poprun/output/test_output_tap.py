import pytest

from poprun.output.output_tap import KEPT, OutputTap


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"", ""),
        (b"one\n", "one"),
        (b"one\ntwo", "two"),
        (b"one\n\n  \n", "one"),
        (b"\x1b[1;31mred\x1b[0m text\n", "red text"),
        (b"\x1b]0;title\x07step 3\r\n", "step 3"),
        (b" 10%|#   |\r 20%|##  |\r", "20%|##  |"),
        (b"caf\xe9\n", "caf\N{REPLACEMENT CHARACTER}"),
        (b"a\x00b\tc\n", "a\\x00b\tc"),
        (b"x" * 5000, "x" * KEPT),
    ],
)
def test_the_last_line_of_an_instance_is_what_a_terminal_would_show(
    written: bytes, line: str
) -> None:
    tap = OutputTap()
    if written:
        tap.feed(1, "stdout", written)

    assert tap.last_line(1) == line
    assert tap.last_line(0) == ""


def test_a_line_that_comes_in_pieces_is_one() -> None:
    tap = OutputTap()
    for piece in (b"ep", b"och", b" 4"):
        tap.feed(0, "stderr", piece)

    assert tap.last_line(0) == "epoch 4"


def test_the_listener_gets_what_instances_write() -> None:
    tap = OutputTap()
    seen: list[tuple[int, str, bytes]] = []
    tap.feed(0, "stdout", b"before")
    tap.listener = lambda *output: seen.append(output)
    tap.feed(0, "stdout", b"a")
    tap.feed(1, "stderr", b"\xff")

    assert seen == [(0, "stdout", b"a"), (1, "stderr", b"\xff")]


def test_the_end_of_each_stream_is_told_and_the_last_one_closes_the_instance() -> None:
    tap = OutputTap()
    seen: list[tuple[str, bytes, bool]] = []
    tap.listener = lambda rank, *rest: seen.append((*rest, tap.is_open(rank)))
    assert not tap.is_open(0)

    tap.open(0)
    tap.open(0)
    tap.close(0, "stderr")
    tap.close(0, "stdout")

    assert seen == [("stderr", b"", True), ("stdout", b"", False)]
