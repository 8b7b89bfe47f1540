import os
from collections.abc import Iterator

import pytest

from poprun.output.stdin import Stdin, StdinFeeder
from poprun.output.waiter import READ, WRITE

MUCH = bytes(range(256)) * 256  # with anything else, more than a pipe takes


@pytest.fixture
def stdin() -> Iterator[int]:
    """Let the test write poprun's stdin."""
    kept = os.dup(0)
    read, write = os.pipe()
    os.dup2(read, 0)
    os.close(read)
    yield write
    os.dup2(kept, 0)
    os.close(kept)


def given(stdin_feeder: StdinFeeder, rank: int) -> int:
    descriptor = stdin_feeder.descriptor_for(rank)
    assert descriptor is not None
    return descriptor


def wants_more(stdin_feeder: StdinFeeder) -> bool:
    interests = stdin_feeder.interests(stdin_feeder.read)
    return [i.descriptor for i in interests if i.events == READ] == [0]


def write_pending(stdin_feeder: StdinFeeder) -> bool:
    """Write what sinks have not taken; return whether there was anything."""
    interests = list(stdin_feeder.interests(stdin_feeder.read))
    writing = [i for i in interests if i.events == WRITE]
    for interest in writing:
        interest.call()
    return bool(writing)


def taken(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    return os.read(descriptor, 1 << 20)


def test_by_default_no_instance_is_sent_anything() -> None:
    stdin_feeder = StdinFeeder(Stdin())

    assert stdin_feeder.descriptor_for(0) is None
    assert not wants_more(stdin_feeder)


def test_a_file_is_opened_by_each_instance_itself() -> None:
    assert StdinFeeder(Stdin(path="/etc/hosts")).descriptor_for(0) is None


def test_one_instance_gets_stdin_itself(stdin: int) -> None:
    stdin_feeder = StdinFeeder(Stdin(rank=1))

    assert stdin_feeder.descriptor_for(0) is None
    descriptor = given(stdin_feeder, 1)
    assert os.path.sameopenfile(descriptor, 0)
    assert not wants_more(stdin_feeder)
    os.close(descriptor)
    os.close(stdin)


def test_all_get_every_byte_and_the_end(stdin: int) -> None:
    stdin_feeder = StdinFeeder(Stdin(copies=2))
    readers = [given(stdin_feeder, rank) for rank in (1, 0)]
    os.write(stdin, b"one\n")
    os.close(stdin)

    assert wants_more(stdin_feeder)
    stdin_feeder.read()
    assert [taken(descriptor) for descriptor in readers] == [b"one\n", b"one\n"]
    stdin_feeder.read()
    assert [taken(descriptor) for descriptor in readers] == [b"", b""]
    assert not wants_more(stdin_feeder)
    for descriptor in readers:
        os.close(descriptor)


def test_nothing_is_read_before_the_last_instance_is_there(stdin: int) -> None:
    stdin_feeder = StdinFeeder(Stdin(copies=2))
    first = given(stdin_feeder, 0)

    assert not wants_more(stdin_feeder)
    second = given(stdin_feeder, 1)
    assert wants_more(stdin_feeder)
    stdin_feeder.close()
    for descriptor in (first, second, stdin):
        os.close(descriptor)


def test_the_slowest_decides_when_more_is_read(stdin: int) -> None:
    stdin_feeder = StdinFeeder(Stdin(copies=2))
    fast, slow = given(stdin_feeder, 0), given(stdin_feeder, 1)
    for data in (b"begin", MUCH):
        os.write(stdin, data)
        stdin_feeder.read()

    came = {fast: taken(fast), slow: b""}
    assert not wants_more(stdin_feeder)
    write_pending(stdin_feeder)
    came[fast] += taken(fast)
    assert not wants_more(stdin_feeder)
    while write_pending(stdin_feeder):
        came[slow] += taken(slow)
    assert wants_more(stdin_feeder)
    assert came == dict.fromkeys((fast, slow), b"begin" + MUCH)
    stdin_feeder.close()
    for descriptor in (fast, slow, stdin):
        os.close(descriptor)


def test_an_instance_that_reads_no_more_is_not_waited_for(stdin: int) -> None:
    stdin_feeder = StdinFeeder(Stdin(copies=2))
    first, second = given(stdin_feeder, 0), given(stdin_feeder, 1)
    os.close(first)
    os.write(stdin, b"one\n")
    stdin_feeder.read()

    assert taken(second) == b"one\n"
    assert wants_more(stdin_feeder)
    os.close(second)
    os.write(stdin, b"two\n")
    stdin_feeder.read()
    assert not wants_more(stdin_feeder)
    os.close(stdin)


def test_a_stdin_that_cannot_be_read_is_at_its_end(stdin: int) -> None:
    directory = os.open("/", os.O_RDONLY)
    os.dup2(directory, 0)
    stdin_feeder = StdinFeeder(Stdin(copies=1))
    descriptor = given(stdin_feeder, 0)
    stdin_feeder.read()

    assert taken(descriptor) == b""
    assert not wants_more(stdin_feeder)
    for number in (directory, descriptor, stdin):
        os.close(number)


def test_a_stdin_that_another_process_has_emptied_is_read_again(stdin: int) -> None:
    stdin_feeder = StdinFeeder(Stdin(copies=1))
    descriptor = given(stdin_feeder, 0)
    os.set_blocking(0, False)
    stdin_feeder.read()

    assert wants_more(stdin_feeder)
    stdin_feeder.close()
    os.close(descriptor)
    os.close(stdin)


def test_who_gets_anything_to_read() -> None:
    assert not Stdin().gives(0)
    assert [Stdin(rank=1).gives(rank) for rank in (0, 1)] == [False, True]
    assert Stdin(copies=2).gives(1)
    assert Stdin(path="/etc/hosts").gives(1)


def test_an_instance_without_input_is_told_of_the_option_that_gives_it_some() -> None:
    copies = "all for each instance to get a copy"

    assert Stdin().advice_for(1) == f"1, or --stdin {copies}"
    assert [Stdin(rank=0).advice_for(rank) for rank in (0, 1)] == ["", copies]
    assert Stdin(copies=2).advice_for(1) == ""
