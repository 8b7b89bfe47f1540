"""Marks on lines, in the form of Open MPI 4.1."""

import tracemalloc

import pytest

from poprun.stdio.tags import PIECE, Mark, Prefix, Xml


@pytest.mark.parametrize(
    ("data", "marked"),
    [
        (b"one\ntwo\n", b"[a]one\n[a]two\n"),
        (b"\n", b"[a]\n"),
        (b"half", b"[a]half"),
        (b"10%\r20%\n", b"[a]10%\r20%\n"),
    ],
)
def test_a_tag_stands_at_the_beginning_of_each_line(data: bytes, marked: bytes) -> None:
    assert Prefix(lambda: b"[a]").apply(data, continues=False) == marked


def test_a_line_that_goes_on_has_its_tag_already() -> None:
    assert Prefix(lambda: b"[a]").apply(b"lo\nyou", continues=True) == b"lo\n[a]you"


def test_a_tag_is_asked_for_each_piece() -> None:
    times = iter([b"1:", b"2:"])
    prefix = Prefix(lambda: next(times))

    assert prefix.apply(b"one\n", continues=False) == b"1:one\n"
    assert prefix.apply(b"two\nand\n", continues=False) == b"2:two\n2:and\n"


def test_on_a_terminal_what_overwrites_the_line_has_a_tag_too() -> None:
    prefix = Prefix(lambda: b"[a]", on_terminal=True)

    assert prefix.apply(b"\r10%\r20%", continues=False) == b"[a]\r[a]10%\r[a]20%"
    assert prefix.apply(b"\r30%\r", continues=True) == b"\r[a]30%\r"
    assert prefix.apply(b"40%\r\n", continues=True) == b"[a]40%\r\n"
    assert prefix.apply(b"one\r\n", continues=False) == b"[a]one\r\n"


@pytest.mark.parametrize(
    ("data", "element"),
    [
        (
            b'a <b> & "c"\t\\\n',
            b'<stdout rank="3">a &lt;b&gt; &amp; "c"&#009;\\&#010;</stdout>\n',
        ),
        (
            b"x\x7f\x80\r\n",
            b'<stdout rank="3">x\x7f&#128;&#013;&#010;</stdout>\n',
        ),
        (
            b"one\n\nhalf",
            b'<stdout rank="3">one&#010;</stdout>\n'
            b'<stdout rank="3">&#010;</stdout>\n'
            b'<stdout rank="3">half</stdout>',
        ),
    ],
)
def test_xml_is_that_of_open_mpi(data: bytes, element: bytes) -> None:
    assert Xml(3, "stdout").apply(data, continues=False) == element
    assert Xml(3, "stdout").apply(data, continues=True) == element


@pytest.mark.parametrize(
    ("mark", "marked"),
    [
        (Prefix(lambda: b"[a]", on_terminal=True), b"[a]x\r" * 1_000_000),
        (Xml(0, "stdout"), b'<stdout rank="0">%b</stdout>' % (b"x&#013;" * 1_000_000)),
    ],
    ids=["tag", "xml"],
)
def test_a_long_line_that_is_marked_everywhere_needs_little_memory(
    mark: Mark, marked: bytes
) -> None:
    data = b"x\r" * 1_000_000
    tracemalloc.start()
    try:
        assert mark.apply(data, continues=False) == marked
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def test_a_line_in_more_than_one_piece_has_one_tag() -> None:
    data = b"x" * PIECE + b"y\n" + b"z" * PIECE

    marked = Prefix(lambda: b"[a]").apply(data, continues=False)

    assert marked == b"[a]" + b"x" * PIECE + b"y\n[a]" + b"z" * PIECE
