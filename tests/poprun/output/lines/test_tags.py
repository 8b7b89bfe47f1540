"""Marks on lines, in the form of Open MPI 4.1."""

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.output.lines.tags import PIECE, Mark, Prefix, Writer, Xml, check_template


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
    assert Prefix(b"[a]").apply(data, continues=False) == marked


def test_a_line_that_goes_on_has_its_tag_already() -> None:
    assert Prefix(b"[a]").apply(b"lo\nyou", continues=True) == b"lo\n[a]you"


def test_a_tag_may_tell_when_each_piece_was_written() -> None:
    prefix = Prefix(lambda time: b"%d:" % time)

    assert prefix.apply(b"one\n", continues=False, time=7.5) == b"7:one\n"
    assert prefix.apply(b"two\nand\n", continues=False, time=8) == b"8:two\n8:and\n"


def test_on_a_terminal_what_overwrites_the_line_has_a_tag_too() -> None:
    prefix = Prefix(b"[a]", on_terminal=True)

    assert prefix.apply(b"\r10%\r20%", continues=False) == b"[a]\r[a]10%\r[a]20%"
    assert prefix.apply(b"\r30%\r", continues=True) == b"\r[a]30%\r"
    assert prefix.apply(b"40%\r\n", continues=True) == b"[a]40%\r\n"
    assert prefix.apply(b"one\r\n", continues=False) == b"[a]one\r\n"


@pytest.mark.parametrize(
    "end",
    [
        b"\x1b[?25h",
        b"\x1b[0m\x1b[K",
        b"\x1b]0;a title\x07",
        b"\x1b]8;;\x1b\\",
        b"\x1b(B\x1b7\x1b=",
        b"\x07\x00",
        b"\r\x1b[2K",
        b"\r\x1b[1A\x1b[2K\r",
        b"\x1b[?2",
        b"\x1b]0;a ti",
        b"\x1b",
    ],
)
def test_on_a_terminal_an_end_that_shows_nothing_has_no_tag(end: bytes) -> None:
    def on_terminal() -> Prefix:
        return Prefix(b"[a]", on_terminal=True)

    assert on_terminal().apply(end, continues=False) == end
    assert on_terminal().apply(b"x\n" + end, continues=False) == b"[a]x\n" + end
    assert on_terminal().apply(b"x\r" + end, continues=False) == b"[a]x\r" + end
    assert on_terminal().apply(end + b"\n", continues=False) == b"[a]" + end + b"\n"
    assert on_terminal().apply(end + b"\nx", continues=True) == end + b"\n[a]x"


def test_a_tag_that_an_end_without_text_had_not_comes_with_the_text() -> None:
    prefix = Prefix(b"[a]", on_terminal=True)

    assert prefix.apply(b"one\n\x1b[?25l", continues=False) == b"[a]one\n\x1b[?25l"
    assert prefix.apply(b"\x1b[32m", continues=True) == b"\x1b[32m"
    assert prefix.apply(b"10%", continues=True) == b"[a]10%"
    assert prefix.apply(b"\r\x1b[32m", continues=True) == b"\r\x1b[32m"
    assert prefix.apply(b"20%", continues=True) == b"[a]20%"
    assert prefix.apply(b"\x1b[0m", continues=True) == b"\x1b[0m"
    assert prefix.apply(b", 21%\n", continues=True) == b", 21%\n"


def test_what_erases_the_line_leaves_the_tag() -> None:
    prefix = Prefix(b"[a]", on_terminal=True)

    assert prefix.apply(b"10%\r\x1b[2K\x1b[32m20%", continues=False) == (
        b"[a]10%\r\x1b[2K[a]\x1b[32m20%"
    )


def test_in_a_file_an_end_that_shows_nothing_has_a_tag() -> None:
    marked = Prefix(b"[a]").apply(b"one\n\x1b[?25h", continues=False)

    assert marked == b"[a]one\n[a]\x1b[?25h"


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
        (Prefix(b"[a]", on_terminal=True), b"[a]x\r" * 1_000_000),
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

    marked = Prefix(b"[a]").apply(data, continues=False)

    assert marked == b"[a]" + b"x" * PIECE + b"y\n[a]" + b"z" * PIECE


@pytest.mark.parametrize(
    ("template", "tag"),
    [
        ("{instance}: ", b"11: "),
        ("{instance:>4}|{local_instance:02} ", b"  11|03 "),
        ("[{host:6}] {stream} ", b"[n\xc3\xb61   ] stderr "),
        ("{{{instance}}}", b"{11}"),
    ],
)
def test_a_template_names_the_writer(template: str, tag: bytes) -> None:
    check_template(template)

    writer = Writer(instance=11, stream="stderr", host="n\u00f61", local_instance=3)
    assert writer.tag(template) == tag


def test_a_template_tells_the_time_in_utc_to_the_millisecond() -> None:
    tag = Writer(instance=0, stream="stdout").tag("{time} {instance} ")

    assert callable(tag)
    assert tag(1_764_121_462.1239) == b"2025-11-26T01:44:22.123Z 0 "
    assert tag(0.0) == b"1970-01-01T00:00:00.000Z 0 "


def test_a_template_may_say_how_the_time_is_written() -> None:
    check_template("{time:%d %H:%M:%S.%f} ")
    tag = Writer(instance=0, stream="stdout").tag("{time:%d %H:%M:%S.%f} ")

    assert callable(tag)
    assert tag(1_764_121_462.25) == b"26 01:44:22.250000 "


def test_each_instance_has_a_colour_and_the_line_after_the_tag_has_none() -> None:
    tags = [
        Writer(instance=n, stream="stdout").tag("{instance}", colored=True)
        for n in (0, 1, 9)
    ]

    assert tags == [b"\x1b[36m0\x1b[39m", b"\x1b[33m1\x1b[39m", b"\x1b[36m9\x1b[39m"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("shrt", "it has no field"),
        ("", "it has no field"),
        ("{rank} ", "{rank} is no field"),
        ("{} ", "{} is no field"),
        ("{instance.real} ", "{instance.real} is no field"),
        ("{instance!r} ", "{instance} has more after it than a width"),
        ("{instance:{host}} ", "{instance} has more after it than a width"),
        ("{instance:9999} ", "{instance} has '9999' after it, which is no width"),
        ("{host:s} ", "{host} has 's' after it, which is no width"),
        ("{instance} \x1b[2J", "it has characters that control a terminal"),
        ("{instance}\n", "it has characters that control a terminal"),
        ("{time:%n}", "it has characters that control a terminal"),
        ("{time:%Q} ", "{time} has '%Q', which strftime lacks"),
        ("{time:%H:%-1~} ", "{time} has '%-1~', which strftime lacks"),
        ("{time:%H%} ", "{time} has '%', which strftime lacks"),
        ("{instance", "expected '}' before end of string"),
        ("instance}", "Single '}' encountered in format string"),
    ],
)
def test_what_is_no_template_is_refused(template: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        check_template(template)


@pytest.mark.parametrize(
    "form", ["%H:%M:%S.%f", "%-d. %b %Y", "%_H", "%F %T", "%:z %%"]
)
def test_a_time_has_the_directives_of_strftime(form: str) -> None:
    check_template(f"{{time:{form}}} ")


@given(st.text("{}instance:!<>0919timehost%s._", max_size=20))
def test_what_is_accepted_makes_a_tag(template: str) -> None:
    try:
        check_template(template)
    except ValueError:
        return
    tag = Writer(instance=11, stream="stderr", host="node1", local_instance=3).tag(
        template
    )
    assert isinstance(tag if isinstance(tag, bytes) else tag(0.0), bytes)
