"""What an agent and poprun send each other comes out as it went in."""

import json
import os
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from poprun.plan.host_facts import HostFacts
from poprun.reach.hosts import Preflight
from poprun.wire import codec, protocol
from poprun.wire.channel import PipeChannel
from poprun.wire.events import (
    Event,
    Exited,
    NotUndone,
    Remains,
    Started,
    UsageMeasured,
)
from poprun.wire.field_types import Long, WaitStatus
from poprun.wire.protocol import Decoder

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
    field = codec.json_field(value)

    assert field.decode() == json.dumps(value)
    assert codec.unpack_json(field) == json.loads(field) == value


@pytest.mark.parametrize(
    "field",
    [b"", b" ", b"nul", b"[1", b"[1] 2", b'{"a" 1}', b'"\n"', b"\xff", b"[" * 100_000],
)
def test_what_is_no_json_is_refused(field: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        codec.unpack_json(field)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_comes_out_as_it_went_in(event: Event) -> None:
    [(kind, fields)] = Decoder().feed(codec.pack_event(event))

    assert codec.unpack_event(*codec.read(kind, fields)) == event


def test_a_number_that_is_too_large_for_its_form_is_sent_as_the_largest() -> None:
    usage = UsageMeasured(
        rank=3,
        cpu_s=1.0,
        memory_kib=1,
        num_processes=1,
        num_calls=1 << 70,
        missing=(-5, 1 << 40),
    )
    [(kind, fields)] = Decoder().feed(codec.pack_event(usage))

    assert codec.unpack_event(*codec.read(kind, fields)) == replace(
        usage, num_calls=(1 << 63) - 1, missing=(0, (1 << 31) - 1)
    )


def test_every_event_of_a_host_has_fields_that_can_be_sent() -> None:
    types = {f.type for c in codec.HOST_EVENTS.values() for f in fields(c)}

    assert types == {int, Long, WaitStatus, float, bool, str, tuple[int, ...]}


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
        ["Exited", 1, 9, 5, float("nan"), 0.5, 1024, True, False, False],
        ["Exited", 1, 9, 5, 10**400, 0.5, 1024, True, False, False],
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
        codec.unpack_event(value)


def test_the_facts_of_a_host_come_out_as_they_went_in() -> None:
    own = Preflight("127.0.0.1").facts()
    field = codec.json_field(asdict(own))

    assert codec.unpack_value(HostFacts, codec.unpack_json(field)) == own


def test_messages_come_whole_however_little_a_pipe_takes() -> None:
    read, write = os.pipe()
    sender = PipeChannel(os.open(os.devnull, os.O_RDONLY), write)
    receiver = PipeChannel(read, os.open(os.devnull, os.O_WRONLY))
    payload = os.urandom(1 << 20)

    sender.send(protocol.pack(protocol.OUTPUT, 1, 0, payload))
    assert sender.has_unsent
    received: list[tuple[int, list[bytes]]] = []
    while not received:
        received += receiver.receive() or []
        sender.flush()

    assert received == [(protocol.OUTPUT, [b"1", b"0", payload])]
    sender.close()
    assert receiver.receive() is None
    receiver.close()


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        codec.unpack_json(b"[" * 100_000)


def test_a_text_of_another_host_controls_no_terminal() -> None:
    event = codec.unpack_event(["NotUndone", "\x1b[2Jgone\udc80 \xe9\n", "n1"])

    assert event == NotUndone(sentence="\\x1b[2Jgone\\x80 \xe9\n", host="n1")


@pytest.mark.parametrize(
    "message",
    [
        (protocol.HELLO, [b"1", b"key", b"0", b"host", b"42", b"9999999"]),
        (protocol.STARTED, [b"42", b"18446744073709551615", b"0,2,3", b"1"]),
        (protocol.REFUSED, [b"2", b"/no/such\xff", b""]),
        (protocol.EXITED, [b"256", b"1", b"2", b"3", b"4", b"itself", b"0"]),
        (protocol.CLEAN, [b"0"]),
        (protocol.FINISHED, [b"3"]),
        (protocol.FOUND, [b""]),
        (protocol.NOT_UNDONE, [b"poprun could not."]),
    ],
)
def test_what_has_the_fields_of_its_kind_is_a_report(
    message: tuple[int, list[bytes]],
) -> None:
    kind, fields = message

    assert len(codec.read(kind, fields)) == len(fields)
    for others in (fields[:-1], [*fields, b"1"]):
        with pytest.raises(ValueError, match="zip"):
            codec.read(kind, others)


@pytest.mark.parametrize(
    "rank",
    [b"-1", b"", b" 1", b"+1", b"1_0", b"x", b"2147483648", b"9" * 5000, b"\xb2"],
)
def test_what_is_no_small_whole_number_is_no_rank(rank: bytes) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        codec.read(protocol.HELLO, [b"1", b"key", rank, b"host", b"42", b"1"])


@pytest.mark.parametrize("cpus", [b"", b"0,", b",", b"0;1", b"-1"])
def test_a_list_of_cpus_has_numbers_and_commas(cpus: bytes) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        codec.read(protocol.STARTED, [b"42", b"1", cpus, b"1"])


def test_a_message_without_a_form_is_refused() -> None:
    for kind in (protocol.START, 255):
        with pytest.raises(ValueError, match=f"a message of kind {kind}"):
            codec.read(kind, [])


def test_a_user_may_have_the_largest_number_that_linux_has() -> None:
    fields = [b"12", b"4294967294", b"sudo sleep 600"]

    assert codec.read(protocol.REMAINS, fields)[:2] == [12, 4294967294]
    remains = Remains(pid=12, user=4294967294, command="sudo", host="n1")
    [(kind, packed)] = Decoder().feed(codec.pack_event(remains))
    assert codec.unpack_event(*codec.read(kind, packed)) == remains


def test_no_two_messages_have_one_number() -> None:
    codes = ("VERSION", "MAX_", "STACKS_SIGNAL")
    kinds = [
        number
        for name, number in vars(protocol).items()
        if isinstance(number, int) and name.isupper() and not name.startswith(codes)
    ]

    assert len(kinds) == len(set(kinds)) > 80


def test_the_last_fields_of_a_job_are_any_number_of_bytes() -> None:
    fields = [b"{}", b"a", b"b"]

    assert codec.read(protocol.START_JOB, fields) == [{}, b"a", b"b"]
    assert codec.read(protocol.REFUSAL, []) == []
    with pytest.raises(ValueError, match="zip"):
        codec.read(protocol.START_JOB, [])
