"""What is read from the instances, and when nothing is."""

import fcntl
import os
import struct
import termios
from collections.abc import Iterator

import pytest

from poprun.output import streams as module
from poprun.output.router import OutputRouter
from poprun.output.routes import Routes
from poprun.output.stream_ends import DescriptorSource
from poprun.output.streams import SHARE, Streams
from poprun.output.writer import FULL_BYTES


class Job:
    """Streams of one job, whose output the test reads."""

    def __init__(self) -> None:
        self.out, self._sink = os.pipe()
        os.set_blocking(self.out, False)
        self.router = OutputRouter(Routes(), self._sink, self._sink)
        self.streams = Streams(self.router)
        self._sources: list[int] = []

    def pipe(self, rank: int = 0) -> tuple[int, int]:
        """Open a stream; returns its number and the end to write to."""
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._sources.append(write)
        self.streams.open(DescriptorSource(read), rank, "stdout")
        return read, write

    def terminal(self) -> tuple[int, int]:
        master, slave = os.openpty()
        self._sources.append(slave)
        self.streams.open(DescriptorSource(master), 0, "stdout")
        return master, slave

    def end(self, source: int) -> None:
        self._sources.remove(source)
        os.close(source)

    def awaited(self) -> list[int]:
        """Return the descriptors from which poprun wants to read."""
        return [interest.descriptor for interest in self.streams.interests()]

    def read(self) -> None:
        """Read each of them once."""
        for interest in list(self.streams.interests()):
            interest.call()

    def shown(self) -> bytes:
        try:
            return os.read(self.out, 1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.streams.close()
        for sink in self.router.sinks:
            sink.close()
        for descriptor in (*self._sources, self.out, self._sink):
            os.close(descriptor)


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def test_what_is_there_is_read_and_nothing_is_waited_for(job: Job) -> None:
    read, write = job.pipe()
    job.read()
    os.write(write, b"one\n")
    job.read()

    assert job.shown() == b"one\n"
    assert job.awaited() == [read]


def test_a_stream_that_ends_is_closed_and_its_last_words_are_shown(job: Job) -> None:
    read, write = job.pipe()
    os.write(write, b"one\ntwo")
    job.end(write)
    job.read()

    assert job.shown() == b"one\ntwo"
    assert not job.streams
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


def test_a_terminal_without_a_writer_is_at_its_end(job: Job) -> None:
    _master, slave = job.terminal()
    os.write(slave, b"one")
    job.end(slave)
    job.read()

    assert job.shown() == b"one"
    assert not job.streams


def test_one_stream_leaves_others_their_turn(job: Job) -> None:
    read, write = job.pipe()
    written = os.write(write, b"x" * (1 << 20))
    assert written > SHARE
    job.read()
    left = struct.unpack("i", fcntl.ioctl(read, termios.FIONREAD, bytes(4)))[0]

    assert left == written - SHARE


def test_nothing_is_read_while_poprun_has_no_reader(job: Job) -> None:
    read, _ = job.pipe()
    job.router.feed(0, "stdout", b"x" * (2 * FULL_BYTES) + b"\n", 0.0)

    assert job.awaited() == []
    job.router.give_up()
    assert job.awaited() == [read]


@pytest.mark.parametrize(
    ("pieces", "pauses"),
    [
        pytest.param([], 0, id="none"),
        pytest.param([b"step 1\n"], 1, id="little"),
        pytest.param([b"x" * 5000 + b"\n"], 0, id="much"),
        pytest.param([b"x" * 5000 + b"\n", *[b"\n"] * 5], 1, id="little-on-average"),
    ],
)
def test_who_says_little_very_often_is_read_at_a_pace(
    job: Job, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], pauses: int
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    _read, write = job.pipe()
    for piece in pieces:
        os.write(write, piece)
        job.read()
    job.streams.pause_if_little_came()
    job.streams.pause_if_little_came()

    assert len(slept) == pauses


def test_only_terminals_get_a_size(job: Job) -> None:
    job.pipe(rank=1)
    _, slave = job.terminal()
    job.streams.resize((30, 100))

    assert os.get_terminal_size(slave) == (100, 30)


def test_streams_that_are_given_up_show_what_came_of_them(job: Job) -> None:
    _read, write = job.pipe()
    os.write(write, b"half")
    job.read()
    job.streams.close()

    assert job.shown() == b"half"
    assert not job.streams
