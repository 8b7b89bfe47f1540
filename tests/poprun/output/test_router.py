import errno
import os
import re
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from poprun.output.kept_output import MOST_BYTES
from poprun.output.lines.screen import Screen
from poprun.output.lines.tags import Writer
from poprun.output.router import OutputRouter
from poprun.output.routes import Routes
from poprun.output.selection import parse
from poprun.output.stream_ends import STREAMS
from poprun.output.writer import FULL_BYTES


class Pipe:
    """What poprun writes to, read by the test."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)

    def taken(self) -> bytes:
        try:
            return os.read(self.read, 1 << 16)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


@pytest.fixture
def out() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
def err() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


class Relays:
    """Makes relays, and closes what they have opened."""

    def __init__(self) -> None:
        self._made: list[OutputRouter] = []

    def __call__(self, routes: Routes, stdout: int, stderr: int) -> OutputRouter:
        router = OutputRouter(routes, stdout, stderr)
        self._made.append(router)
        for rank in range(2):
            for stream in ("stdout", "stderr"):
                router.open(rank, stream)
        return router

    def close(self) -> None:
        for router in self._made:
            for sink in router.sinks:
                sink.close()


@pytest.fixture
def relays() -> Iterator[Relays]:
    made = Relays()
    yield made
    made.close()


def test_each_stream_goes_where_it_belongs(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(), out.write, err.write)
    router.feed(0, "stdout", b"one\n", 0.0)
    router.feed(1, "stderr", b"two\n", 0.0)

    assert (out.taken(), err.taken()) == (b"one\n", b"two\n")


def test_a_tag_names_the_instance_and_the_stream(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(tag=True), out.write, err.write)
    router.feed(0, "stdout", b"one\n", 0.0)
    router.feed(1, "stderr", b"two\n", 0.0)

    assert out.taken() == b"[1,0]<stdout>:one\n"
    assert err.taken() == b"[1,1]<stderr>:two\n"


def test_on_one_terminal_both_streams_share_the_line(relays: Relays, out: Pipe) -> None:
    router = relays(Routes(), out.write, out.write)
    router.feed(0, "stdout", b"10%", 0.0)
    router.tick(0.05)
    router.feed(0, "stderr", b"warning\n", 0.06)
    router.feed(0, "stdout", b" 20%\n", 0.07)

    assert out.taken() == b"10% 20%\nwarning\n"


def test_a_partial_line_of_one_terminal_takes_no_line_of_another(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(), out.write, err.write)
    router.feed(0, "stdout", b"10%", 0.0)
    router.tick(0.05)
    router.feed(1, "stderr", b"warning\n", 0.06)

    assert err.taken() == b"warning\n"


def test_only_one_instance_is_shown_and_all_are_remembered(
    relays: Relays, out: Pipe, err: Pipe, tmp_path: Path
) -> None:
    routes = Routes(selection=parse("0"), directory=str(tmp_path / "1"))
    router = relays(routes, out.write, err.write)
    for rank in range(2):
        router.feed(rank, "stdout", b"out %d\n" % rank, 0.0)
        router.feed(rank, "stderr", b"err %d\n" % rank, 0.0)
        router.close(rank, "stdout")
        router.close(rank, "stderr")

    assert (out.taken(), err.taken()) == (b"out 0\n", b"err 0\n")
    assert router.tail(1) == b"err 1\n"
    assert (tmp_path / "1/rank.0/stdout").read_bytes() == b"out 0\n"
    assert (tmp_path / "1/rank.1/stdout").read_bytes() == b"out 1\n"
    assert (tmp_path / "1/rank.1/stderr").read_bytes() == b"err 1\n"


def test_what_came_before_the_end_goes_out_at_the_end(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(tag=True), out.write, err.write)
    router.feed(0, "stdout", b"half", 0.0)

    assert out.taken() == b""
    router.close(0, "stdout")
    assert out.taken() == b"[1,0]<stdout>:half"


def test_the_end_of_stderr_is_kept_and_no_more(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(selection=parse("0")), out.write, err.write)
    for _ in range(100):
        router.feed(1, "stderr", b"x" * 999 + b"\n", 0.0)
    router.feed(1, "stderr", b"the end\n", 0.0)

    assert len(router.tail(1)) == 16384
    assert router.tail(1).endswith(b"x\nthe end\n")
    assert router.tail(0) == b""


def test_the_last_to_speak_where_errors_go_is_known(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(), out.write, err.write)
    router.feed(1, "stderr", b"Traceback\n", 0.0)
    router.feed(0, "stdout", b"elsewhere\n", 0.0)

    assert router.is_in_sight(1)
    router.feed(0, "stderr", b"stopped\n", 0.0)
    assert not router.is_in_sight(1)


def test_poprun_s_own_words_begin_on_a_line_of_their_own(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(), out.write, err.write)
    router.feed(0, "stderr", b"10%", 0.0)
    router.tick(0.05)
    router.say("poprun: stopped\n")
    router.say("poprun: done\n")

    assert err.taken() == b"10%\npoprun: stopped\npoprun: done\n"


def test_a_file_that_cannot_be_opened_loses_only_itself(
    relays: Relays, out: Pipe, err: Pipe, tmp_path: Path
) -> None:
    taken = tmp_path / "1/rank.0/stdout"
    taken.mkdir(parents=True)
    router = relays(Routes(directory=str(tmp_path / "1")), out.write, err.write)
    router.feed(0, "stdout", b"one\n", 0.0)
    router.feed(1, "stdout", b"two\n", 0.0)

    assert router.failure == (str(taken), errno.EISDIR)
    assert out.taken() == b"one\ntwo\n"
    assert (tmp_path / "1/rank.1/stdout").read_bytes() == b"two\n"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_full_disk_is_named_by_its_stream(
    relays: Relays, out: Pipe, name: str
) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        descriptors = {"stdout": out.write, "stderr": out.write, name: full.fileno()}
        router = relays(Routes(), descriptors["stdout"], descriptors["stderr"])
        router.feed(0, name, b"one\n", 0.0)

    assert router.failure == (name, errno.ENOSPC)
    assert not router.closed


def test_a_reader_that_has_gone_is_no_failure(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    read, write = os.pipe()
    os.close(read)
    router = relays(Routes(), write, err.write)
    router.feed(0, "stdout", b"one\n", 0.0)
    os.close(write)

    assert router.closed
    assert router.failure is None


def test_lines_in_files_are_tagged_as_on_the_console(
    relays: Relays, out: Pipe, err: Pipe, tmp_path: Path
) -> None:
    router = relays(
        Routes(tag=True, directory=str(tmp_path / "1")), out.write, err.write
    )
    router.feed(0, "stdout", b"one\ntw", 0.0)
    router.feed(0, "stdout", b"o\n", 0.0)
    router.feed(0, "stdout", b"10%\r20%\n", 0.0)

    tagged = b"".join(
        b"[1,0]<stdout>:" + line for line in (b"one\n", b"two\n", b"10%\r20%\n")
    )
    assert out.taken() == tagged
    assert (tmp_path / "1/rank.0/stdout").read_bytes() == tagged


def test_files_may_be_all_there_is(
    relays: Relays, out: Pipe, err: Pipe, tmp_path: Path
) -> None:
    routes = Routes(directory=str(tmp_path / "1"), only_files=True)
    router = relays(routes, out.write, err.write)
    router.feed(0, "stdout", b"one\n", 0.0)

    assert out.taken() == b""
    assert (tmp_path / "1/rank.0/stdout").read_bytes() == b"one\n"


@pytest.mark.parametrize(("tag", "whose"), [(False, b""), (True, b"[1,0]")])
def test_the_time_stands_before_the_tag(
    relays: Relays,
    out: Pipe,
    err: Pipe,
    monkeypatch: pytest.MonkeyPatch,
    tag: bool,
    whose: bytes,
) -> None:
    ctime = {1.5: "Sun Nov  2 07:14:12 2026", 2.0: "Sun Nov  2 07:14:13 2026"}
    monkeypatch.setattr("poprun.output.lines.tags.ctime", ctime.__getitem__)
    router = relays(Routes(tag=tag, timestamp=True), out.write, err.write)
    router.feed(0, "stdout", b"one\n", 0.0, 1.5)
    router.feed(0, "stdout", b"two\n", 0.0, 2.0)

    assert out.taken() == (
        b"Sun Nov  2 07:14:12 2026%b<stdout>:one\n"
        b"Sun Nov  2 07:14:13 2026%b<stdout>:two\n" % (whose, whose)
    )


def test_a_line_that_waited_has_the_time_when_it_was_written(
    relays: Relays, out: Pipe, err: Pipe, tmp_path: Path
) -> None:
    writers = [Writer(instance=0, stream=""), Writer(instance=1, stream="")]
    routes = Routes(
        template="{time:%S}/{instance} ", template_streams=STREAMS, writers=writers
    )
    router = relays(routes, out.write, err.write)
    router.feed(0, "stdout", b"10%", 0.0, 1.0)
    router.tick(0.05)
    router.feed(1, "stdout", b"two\n", 0.06, 2.0)
    router.feed(1, "stdout", b"three\nfo", 0.07, 3.0)
    router.feed(1, "stdout", b"ur\n", 0.08, 4.0)
    router.feed(0, "stdout", b" 20%\n", 0.09, 5.0)

    assert out.taken() == b"01/0 10% 20%\n02/1 two\n03/1 three\n04/1 four\n"


def test_a_template_counts_on_the_console_and_files_stay_as_they_are(
    relays: Relays, out: Pipe, err: Pipe, tmp_path: Path
) -> None:
    routes = Routes(
        template="{instance:2}| ",
        template_streams=("stderr",),
        writers=[Writer(instance=0, stream=""), Writer(instance=1, stream="")],
        colored_streams=("stderr",),
        directory=str(tmp_path),
    )
    router = relays(routes, out.write, err.write)
    router.feed(1, "stdout", b"one\n", 0.0)
    router.feed(1, "stderr", b"two\n", 0.0)

    assert (out.taken(), err.taken()) == (b"one\n", b"\x1b[33m 1| \x1b[39mtwo\n")
    assert (tmp_path / "rank.1/stderr").read_bytes() == b"two\n"
    assert routes.width_of_mark(2) == len(" 1| ")


def kept(relays: Relays, out: Pipe, err: Pipe, shown: str) -> OutputRouter:
    routes = Routes(
        selection=parse(shown),
        writers=[Writer(instance=0, stream=""), Writer(instance=1, stream="")],
    )
    return relays(routes, out.write, err.write)


def test_the_output_of_an_instance_is_shown_when_it_has_failed(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = kept(relays, out, err, "failed")
    for rank in range(2):
        router.feed(rank, "stdout", b"out %d\n" % rank, 0.0)
        router.feed(rank, "stderr", b"err %d" % rank, 0.0)
    router.close(1, "stderr")

    assert (out.taken(), err.taken()) == (b"", b"")
    router.show_failed(1)
    assert (out.taken(), err.taken()) == (b"out 1\n", b"err 1")
    router.feed(1, "stdout", b"more\n", 0.0)
    router.show_failed(1)
    assert (out.taken(), err.taken()) == (b"more\n", b"")


def test_others_may_be_shown_beside_those_that_fail(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = kept(relays, out, err, "first,failed")
    router.feed(0, "stdout", b"zero\n", 0.0)
    router.feed(1, "stdout", b"one\n", 0.0)

    assert out.taken() == b"zero\n"
    router.show_failed(0)
    router.show_failed(1)
    assert out.taken() == b"one\n"


def test_of_a_failed_instance_no_more_is_kept_than_its_last_lines(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = kept(relays, out, err, "failed")
    router.feed(1, "stderr", b"once\n", 0.0)
    for number in range(200):
        router.feed(1, "stdout", (b"%d " % number) * 1500 + b"\nx", 0.0)
    router.close(1, "stdout")

    router.show_failed(1)
    shown = b""
    while piece := out.taken():
        shown += piece
        for sink in router.sinks:
            sink.flush()
    lines = shown.splitlines()
    assert 900_000 < len(shown) <= MOST_BYTES
    assert re.match(rb"x(\d+) \1 ", lines[0])
    assert lines[-1] == b"x"
    assert re.fullmatch(
        rb"poprun: the first [0-9]+ bytes that instance 1 has written are not shown: "
        rb"only its last output is kept\.\n",
        err.taken(),
    )


def test_xml_is_one_document_on_stdout(relays: Relays, out: Pipe, err: Pipe) -> None:
    router = relays(Routes(xml=True, tag=True), out.write, err.write)
    router.feed(0, "stdout", b"one\n", 0.0)
    router.feed(1, "stderr", b"two\n", 0.0)
    router.say("poprun: done\n")
    router.end()

    assert out.taken() == (
        b"<mpirun>\n"
        b'<stdout rank="0">one&#010;</stdout>\n'
        b'<stderr rank="1">two&#010;</stderr>\n'
        b"</mpirun>\n"
    )
    assert err.taken() == b"poprun: done\n"


def test_where_stderr_comes_by_stdout_its_end_is_kept(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(merged=True), out.write, err.write)
    router.feed(1, "stdout", b"no use\n", 0.0)

    assert router.tail(1) == b"no use\n"
    assert not router.is_in_sight(1)


def test_stderr_is_written_while_stdout_is_not_read(
    relays: Relays, out: Pipe, err: Pipe
) -> None:
    router = relays(Routes(), out.write, err.write)
    router.feed(0, "stderr", b"Name? ", 0.0)
    router.feed(0, "stdout", b"x" * (2 * FULL_BYTES) + b"\nhalf", 0.0)

    assert router.full
    assert router.deadline() == 0.05
    router.tick(0.05)
    assert err.taken() == b"Name? "
    assert router.deadline() == inf


def test_a_status_is_told_when_an_instance_has_last_written_anything(
    out: Pipe, err: Pipe
) -> None:
    asked: list[tuple[float, float]] = []

    def status(now: float, last_output: float) -> str:
        asked.append((now, last_output))
        return "busy"

    routes = Routes(selection=parse("0"))
    router = OutputRouter(routes, out.write, err.write, {"stderr": Screen()}, status)
    router.open(1, "stdout")
    router.tick(1.0)
    router.feed(1, "stdout", b"hidden", 1.5)
    router.tick(2.0)

    assert asked == [(1.0, -inf), (2.0, 1.5)]
    for sink in router.sinks:
        sink.close()


def test_a_status_does_not_wait_for_a_terminal_that_takes_nothing(
    out: Pipe, err: Pipe
) -> None:
    asked: list[float] = []

    def status(now: float, last_output: float) -> str:
        asked.append(now)
        return "busy"

    router = OutputRouter(Routes(), out.write, err.write, {"stderr": Screen()}, status)
    router.open(0, "stderr")
    router.tick(1.0)
    assert (err.taken(), router.deadline()) == (b"busy", 1.25)
    router.feed(0, "stderr", b"x" * (2 * FULL_BYTES) + b"\n", 1.5)
    router.tick(2.0)

    assert (asked, router.deadline()) == ([1.0], inf)
    for sink in router.sinks:
        sink.close()
