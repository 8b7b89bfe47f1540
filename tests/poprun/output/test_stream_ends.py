"""Stream ends that are no descriptors: one file, and one call to register them."""

import os
import time
from collections.abc import Iterator
from math import inf

import pytest
from fake_frames import WINDOW, FramedSink, FramedSource

from poprun.output import waiter
from poprun.output.router import OutputRouter
from poprun.output.routes import Routes
from poprun.output.stdin import Stdin, StdinFeeder
from poprun.output.streams import Streams
from poprun.output.writer import FULL_BYTES
from poprun.supervise.drain import drain

LINE = bytes(range(32, 127)) + b"\n"


class Job:
    """One framed stream on its way to a pipe that the test reads."""

    def __init__(self) -> None:
        self.reader, self._out = os.pipe()
        os.set_blocking(self.reader, False)
        self.router = OutputRouter(Routes(), self._out, self._out)
        self.streams = Streams(self.router)
        self.source = FramedSource()
        self.streams.open(self.source, 3, "stdout")

    def turn(self) -> None:
        """Do what a turn of the loop does with output."""
        interests = [*self.streams.interests(), *self.router.interests()]
        waiter.serve(interests, time.monotonic())
        self.streams.tick()
        self.router.tick(time.monotonic())

    def shown(self) -> bytes:
        try:
            return os.read(self.reader, 1 << 20)
        except BlockingIOError:
            return b""

    def drain(self) -> None:
        def serve(due: float) -> None:
            waiter.serve(self.router.interests(), due)

        drain(self.router, self.streams, serve, lambda: inf)

    def close(self) -> None:
        for sink in self.router.sinks:
            sink.close()
        os.close(self._out)
        os.close(self.reader)


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.close()


def test_frames_are_shown_and_give_their_credit_back(job: Job) -> None:
    assert job.source.receive(b"one\n") == b""
    assert job.source.credit == WINDOW - 4
    assert job.streams.deadline() == 0.0
    job.turn()

    assert job.shown() == b"one\n"
    assert job.source.credit == WINDOW
    assert job.streams.deadline() == inf


def test_a_sink_that_is_full_pauses_the_sender(job: Job) -> None:
    sent = LINE * (3 * FULL_BYTES // len(LINE))
    waiting = sent
    while job.source.credit:
        waiting = job.source.receive(waiting)
        job.turn()
    # The terminal is not read: what poprun has taken is bounded, and it asks for no
    # more, now or later.
    taken = len(sent) - len(waiting)
    assert FULL_BYTES < taken < 2 * FULL_BYTES
    assert job.streams.deadline() == inf
    job.turn()
    assert job.source.receive(waiting) == waiting

    shown = b""
    while len(shown) < len(sent):
        shown += job.shown()
        waiting = job.source.receive(waiting)
        job.turn()
    assert shown == sent
    assert job.source.credit == WINDOW


def test_the_end_of_a_framed_stream_needs_no_newline(job: Job) -> None:
    job.source.receive(b"half")
    job.source.receive_end()
    job.turn()

    assert job.shown() == b"half"
    assert job.source.is_closed
    assert not job.streams


def test_drain_reads_frames_to_their_end(job: Job) -> None:
    job.source.receive(b"one\n")
    job.source.receive(b"two")
    job.source.receive_end()
    job.drain()

    assert job.shown() == b"one\ntwo"
    assert not job.streams


@pytest.fixture
def stdin() -> Iterator[int]:
    """Let the test write poprun's stdin."""
    saved = os.dup(0)
    read, write = os.pipe()
    os.dup2(read, 0)
    os.close(read)
    yield write
    os.dup2(saved, 0)
    os.close(saved)
    os.close(write)


def feeding(feeder: StdinFeeder) -> tuple[StdinFeeder, FramedSink]:
    sink = FramedSink()
    feeder.add(sink)
    return feeder, sink


def test_a_full_sink_pauses_poprun_s_standard_input(stdin: int) -> None:
    feeder, sink = feeding(StdinFeeder(Stdin(copies=1)))
    data = LINE * (2 * WINDOW // len(LINE))
    os.write(stdin, data)
    feeder.read()

    assert sink.credit == 0
    assert list(feeder.interests(feeder.read)) == []
    feeder.tick()
    assert b"".join(sink.frames) == data[:WINDOW]
    sink.credit = WINDOW
    feeder.tick()
    assert b"".join(sink.frames) == data
    assert [i.descriptor for i in feeder.interests(feeder.read)] == [0]


def test_a_remote_instance_can_be_the_only_one_that_reads(stdin: int) -> None:
    feeder, sink = feeding(StdinFeeder(Stdin(rank=1)))
    os.write(stdin, b"one\n")
    feeder.read()
    assert sink.frames == [b"one\n"]

    feeder.close()
    assert sink.is_closed


def test_a_remote_instance_that_has_ended_is_not_waited_for(stdin: int) -> None:
    feeder, sink = feeding(StdinFeeder(Stdin(copies=1)))
    sink.is_broken = True
    os.write(stdin, b"one\n")
    feeder.read()

    assert sink.is_closed
    assert list(feeder.interests(feeder.read)) == []
