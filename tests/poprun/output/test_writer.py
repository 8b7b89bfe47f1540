import contextlib
import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from poprun.output.writer import FULL_BYTES, Sink

MUCH = bytes(range(256)) * 2048  # more than any pipe takes at once


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        with contextlib.suppress(OSError):  # the test has closed it
            os.close(descriptor)


def without_more_descriptors(descriptor: int) -> Sink:
    """Make a sink that cannot open anew what it writes to, as after su."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        return Sink(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def read_while_flushing(sink: Sink, read: int) -> bytes:
    data = b""
    while sink.queued:
        data += os.read(read, 1 << 16)
        sink.flush()
    return data


def test_what_can_be_written_is_written_at_once(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1])
    sink.write(b"one")
    sink.write(b"two")

    assert sink.queued == 0
    assert os.read(pipe[0], 100) == b"onetwo"


def test_closing_a_sink_leaves_what_it_was_made_from(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1])
    sink.close()

    assert os.write(pipe[1], b"one") == 3
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(sink.fileno())


@pytest.mark.parametrize("make", [Sink, without_more_descriptors])
def test_a_write_does_not_wait_for_a_reader_that_sleeps(
    pipe: tuple[int, int], make: type[Sink]
) -> None:
    sink = make(pipe[1])
    sink.write(MUCH)
    sink.write(b"the end")

    assert 0 < sink.queued < len(MUCH)
    data = read_while_flushing(sink, pipe[0])
    os.close(pipe[1])
    sink.close()
    while piece := os.read(pipe[0], 1 << 16):
        data += piece
    assert data == MUCH + b"the end"


def test_a_pipe_is_left_as_the_shell_made_it(pipe: tuple[int, int]) -> None:
    Sink(pipe[1]).write(MUCH)

    assert os.get_blocking(pipe[1])


def test_a_full_sink_says_so(pipe: tuple[int, int]) -> None:
    sink = Sink(pipe[1])

    sink.write(b"x" * FULL_BYTES)
    assert not sink.full
    sink.write(b"x" * FULL_BYTES)
    assert sink.full


def test_a_socket_is_written_to_without_waiting() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sink = Sink(ours.fileno())
        sink.write(MUCH)

        assert sink.queued
        data = read_while_flushing(sink, theirs.fileno())
        theirs.setblocking(False)
        while len(data) < len(MUCH):
            data += theirs.recv(1 << 16)
        assert data == MUCH
        assert ours.getblocking()
        sink.close()


def test_a_file_is_written_where_its_writer_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        file.write(b"before ")
        sink = Sink(file.fileno())
        sink.write(MUCH)

        assert sink.queued == 0
    assert path.read_bytes() == b"before " + MUCH


def test_a_reader_that_has_gone_is_noticed_and_what_waits_is_dropped(
    pipe: tuple[int, int],
) -> None:
    sink = Sink(pipe[1])
    sink.write(MUCH)
    os.close(pipe[0])
    sink.flush()

    assert (sink.failure, sink.queued) == (errno.EPIPE, 0)
    sink.write(b"more")
    assert sink.queued == 0


def test_a_full_disk_is_noticed() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        sink = Sink(full.fileno())
        sink.write(b"one")

        assert sink.failure == errno.ENOSPC


def test_what_is_open_for_reading_only_fails_when_something_is_written() -> None:
    with open(os.devnull, "rb") as null:
        sink = Sink(null.fileno())

        assert sink.failure == 0
        sink.write(b"one")
        assert sink.failure == errno.EBADF


def test_draining_waits_until_all_is_written(pipe: tuple[int, int]) -> None:
    child = os.fork()
    if child == 0:
        os.close(pipe[1])
        size = 0
        while data := os.read(pipe[0], 1000):
            size += len(data)
        os._exit(size == len(MUCH))
    sink = Sink(pipe[1])
    sink.write(MUCH)
    sink.drain()

    assert sink.queued == 0
    sink.close()
    os.close(pipe[1])
    assert os.waitpid(child, 0)[1] == 1 << 8
