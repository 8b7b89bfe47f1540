"""The last of the output, and readers who are slow or have stopped reading."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

import pytest
from fake_frames import FramedSource

from poprun.output import waiter
from poprun.output.router import OutputRouter
from poprun.output.routes import Routes
from poprun.output.stream_ends import DescriptorSource
from poprun.output.streams import Streams
from poprun.output.waiter import READ, Interest
from poprun.supervise import drain
from poprun.supervise.drain import reader_timeout
from poprun.supervise.job_state import Cause, Reason

MUCH = bytes(range(256)) * 2048  # more than any pipe takes at once


@pytest.mark.parametrize(
    ("reason", "failed", "signals", "seconds"),
    [
        pytest.param(None, False, 0, inf, id="success"),
        pytest.param(None, True, 0, 60.0, id="failure-with-keep-going"),
        pytest.param(Reason.FAILED, True, 0, 60.0, id="failure"),
        pytest.param(Reason.MPIRUN_ENDED, False, 0, 60.0, id="mpirun"),
        pytest.param(Reason.TIMEOUT, False, 0, 5.0, id="timeout"),
        pytest.param(Reason.START_TIMEOUT, False, 0, 5.0, id="start-timeout"),
        pytest.param(Reason.INTERRUPTED, True, 1, 5.0, id="signal"),
        pytest.param(None, False, 1, 5.0, id="signal-after-the-end"),
        pytest.param(Reason.FAILED, True, 2, 0.2, id="second-signal"),
    ],
)
def test_a_reader_is_waited_for_by_how_the_job_ended(
    reason: Reason | None, failed: bool, signals: int, seconds: float
) -> None:
    cause = None if reason is None else Cause(reason=reason)

    assert reader_timeout(cause, failed=failed, signals=signals) == seconds


class Ends(NamedTuple):
    """Pipes by name, and a router that writes into `out`."""

    out: tuple[int, int]
    source: tuple[int, int]
    wake: tuple[int, int]
    router: OutputRouter
    streams: Streams

    def drain(
        self, limit: Callable[[], float], on_signal: Callable[[], None] = lambda: None
    ) -> None:
        signals = Interest(self.wake[0], READ, on_signal)

        def serve(due: float) -> None:
            output = (*self.streams.interests(), *self.router.interests())
            waiter.serve((signals, *output), due)

        drain.drain(self.router, self.streams, serve, limit)


@pytest.fixture
def ends() -> Iterator[Ends]:
    pipes = [os.pipe() for _ in range(3)]
    router = OutputRouter(Routes(), pipes[0][1], pipes[0][1])
    ends = Ends(*pipes, router, Streams(router))
    ends.streams.open(DescriptorSource(os.dup(pipes[1][0])), 0, "stdout")
    yield ends
    ends.streams.close()
    for sink in router.sinks:
        sink.close()
    for descriptor in {d for pipe in pipes for d in pipe}:
        os.close(descriptor)


def replace_write_end(ends: Ends) -> None:
    """Let the stream come to its end, and keep the number for the fixture."""
    os.dup2(ends.wake[1], ends.source[1])


def test_what_is_in_the_streams_is_read_to_the_end(ends: Ends) -> None:
    os.write(ends.source[1], b"one\ntwo")
    replace_write_end(ends)
    ends.drain(lambda: inf)

    assert os.read(ends.out[0], 99) == b"one\ntwo"
    assert not ends.streams


def test_a_stream_that_a_process_holds_open_is_given_up(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "STREAMS_END_S", 0.05)
    os.write(ends.source[1], b"one\n")
    ends.drain(lambda: inf)

    assert os.read(ends.out[0], 99) == b"one\n"
    assert not ends.streams


def test_what_comes_by_a_slow_connection_is_waited_for(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(drain.time, "monotonic", lambda: now)
    source = FramedSource()
    ends.streams.open(source, 1, "stdout")
    frames = [b"a", b"b", b"c", b"d", b"e"]

    def serve(due: float) -> None:
        nonlocal now
        now += 0.6 * drain.STREAMS_END_S
        if frames:
            source.receive(frames.pop(0))
        else:
            source.receive_end()
        waiter.serve(ends.router.interests(), 0.0)

    replace_write_end(ends)
    waiter.serve(ends.streams.interests(), 0.0)
    drain.drain(ends.router, ends.streams, serve, lambda: inf)

    assert os.read(ends.out[0], 100) == b"abcde"


def test_a_reader_that_takes_nothing_loses_the_unwritten_output(ends: Ends) -> None:
    replace_write_end(ends)
    ends.router.feed(0, "stdout", MUCH, 0.0)
    ends.drain(lambda: 0.05)

    room = fcntl.fcntl(ends.out[0], fcntl.F_GETPIPE_SZ)
    assert ends.router.lost == {"stdout": len(MUCH) - room}
    assert ends.router.failure is None
    assert not ends.router.queued


def test_a_slow_reader_that_takes_something_now_and_then_loses_nothing(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_write_end(ends)
    ends.router.feed(0, "stdout", MUCH, 0.0)
    clock = iter(range(10**9))
    monkeypatch.setattr(drain.time, "monotonic", lambda: next(clock) * 20.0)
    received = bytearray()

    def read() -> None:
        while len(received) < len(MUCH):
            received.extend(os.read(ends.out[0], 1 << 14))

    reader = threading.Thread(target=read)
    reader.start()
    ends.drain(lambda: inf)
    reader.join()

    assert bytes(received) == MUCH
    assert ends.router.lost == {}


def test_a_signal_shortens_the_wait(ends: Ends) -> None:
    replace_write_end(ends)
    ends.router.feed(0, "stdout", MUCH, 0.0)
    os.write(ends.wake[1], b"\x0f")
    came: list[bytes] = []
    ends.drain(
        lambda: 0.0 if came else inf,
        lambda: came.append(os.read(ends.wake[0], 1)),
    )

    assert came == [b"\x0f"]
    assert list(ends.router.lost) == ["stdout"]
