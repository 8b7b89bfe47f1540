"""What an agent and poprun send each other comes out as it went in."""

import inspect
import json
import os
from dataclasses import replace
from typing import Any

import pytest

from poprun.reach import facts
from poprun.reach.hosts import LocalPreflight
from poprun.wire import event_codec, events, messages, protocol
from poprun.wire.channel import PipeChannel
from poprun.wire.events import Event, Exited, NotUndone, Remains, Started, UsageMeasured

EVENTS = [
    *(
        Started(rank=3, pid=17, cpus=(0, 2), memory_is_bound=False),
        Started(rank=3, pid=17),
    ),
    UsageMeasured(rank=3, cpu_s=1e6, memory_kib=1 << 40, num_processes=2),
    UsageMeasured(
        rank=3,
        cpu_s=1.0,
        memory_kib=9,
        num_processes=1,
        num_groups=2,
        num_calls=1 << 40,
        total_bytes=1 << 60,
        operation="barrier",
        call_bytes=1 << 40,
        waited_s=2.5,
        missing=(1, 7),
    ),
    Remains(pid=17, user=1000, command="sleep 9", host="n1"),
    Exited(
        rank=1,
        status=9,
        at_ns=5,
        user_s=0.25,
        system_s=0.5,
        peak_kib=1024,
        by_itself=True,
    ),
]


VALUES = [
    *(
        None,
        True,
        0,
        -(1 << 70),
        0.1,
        1e300,
        float("inf"),
        "",
        'a\n"\\\x7f\udce9\U0001f600',
    ),
    *([], {}, [[], {"a": [1, None, {"b": False}]}], {"\udc80": "caf\xe9"}),
]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_written_and_read_as_by_the_package_json(value: Any) -> None:
    field = messages.pack_fields(value)

    assert field.decode() == json.dumps(value)
    assert messages.unpack(field) == json.loads(field) == value


@pytest.mark.parametrize(
    "field",
    [b"", b" ", b"nul", b"[1", b"[1] 2", b'{"a" 1}', b'"\n"', b"\xff", b"[" * 100_000],
)
def test_what_is_no_json_is_refused(field: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        messages.unpack(field)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_comes_out_as_it_went_in(event: Event) -> None:
    field = messages.pack_fields(event_codec.pack(event))

    assert event_codec.unpack(messages.unpack(field)) == event


def test_every_event_has_fields_that_can_be_sent() -> None:
    sendable = {"int", "str", "float", "bool", "tuple[int, ...]"}
    classes = [c for _, c in inspect.getmembers(events, inspect.isclass)]
    for event_class in classes:
        if issubclass(event_class, Event):
            annotations = inspect.get_annotations(event_class, eval_str=False)
            names = {getattr(t, "__name__", str(t)) for t in annotations.values()}
            assert {n if n != "tuple" else "tuple[int, ...]" for n in names} <= sendable


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], ["Record", 1], ["os"], ["Clean"], ["Clean", 1, 2, 3], {"a": 1}),
        *(
            ["Clean", "1", 2],
            ["Clean", 1, -2],
            ["Clean", 1, 1 << 31],
            ["Clean", 1, True],
        ),
        ["Started", 3, 17, {}, False],
        ["Exited", 1, 0x17F, 5, 0.25, 0.5, 1024, True],  # stopped, not ended
        ["Exited", 1, 9, 5, float("nan"), 0.5, 1024, True],
        # These are poprun's own.
        *(
            ["MpirunExited", 0],
            ["HostLost", "n2", [], ""],
            ["Interrupted", 2],
            ["Tick"],
        ),
    ],
)
def test_what_is_no_event_of_a_host_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not an event of a host"):
        event_codec.unpack(value)


def test_the_facts_of_a_host_come_out_as_they_went_in() -> None:
    own = LocalPreflight("127.0.0.1").facts()
    field = messages.pack_fields(facts.pack(own))

    there = facts.unpack(messages.unpack(field), {"HOME": "/home/a"})

    assert there == replace(own, environ={"HOME": "/home/a"})


def test_messages_come_whole_however_little_a_pipe_takes() -> None:
    read, write = os.pipe()
    sender = PipeChannel(os.open(os.devnull, os.O_RDONLY), write)
    receiver = PipeChannel(read, os.open(os.devnull, os.O_WRONLY))
    payload = os.urandom(1 << 20)

    sender.send(protocol.pack(messages.OUTPUT, 1, 0, payload))
    assert sender.has_unsent
    received: list[tuple[int, list[bytes]]] = []
    while not received:
        received += receiver.receive() or []
        sender.flush()

    assert received == [(messages.OUTPUT, [b"1", b"0", payload])]
    sender.close()
    assert receiver.receive() is None
    receiver.close()


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        messages.unpack(b"[" * 100_000)


def test_a_text_of_another_host_controls_no_terminal() -> None:
    event = event_codec.unpack(["NotUndone", "\x1b[2Jgone\udc80 \xe9\n", "n1"])

    assert event == NotUndone(sentence="\\x1b[2Jgone\\xed\\xb2\\x80 \xe9\n", host="n1")
