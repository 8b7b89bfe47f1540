"""A host that sends what it must not is lost, and does nothing else to poprun.

poprun's end of the connection, with a socket for the agent's.
"""

import json
import os
import socket
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poprun.errors import LaunchError
from poprun.host.forwarded_streams import INPUT_WINDOW, OUTPUT_WINDOW
from poprun.host.remote_host import MOST_OTHER_EVENTS, RemoteHost
from poprun.job.values import HostJob
from poprun.output.stdin import Stdin, StdinFeeder
from poprun.reach.connections.agent_connection import MOST_RECEIVED, AgentConnection
from poprun.reach.connections.ssh import Ssh
from poprun.reach.hosts import Preflight
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.reach.remote import RemotePreflight
from poprun.wire import codec, protocol
from poprun.wire.agent_hello import AgentHello
from poprun.wire.channel import Channel
from poprun.wire.events import (
    AcceptFailed,
    Clean,
    DaemonKilled,
    Event,
    HostLost,
    NotUndone,
)

SSH = Ssh(words=("/usr/bin/ssh",), text="ssh")
NONSENSE = "its agent has sent an invalid message"


class Streams:
    """Takes the place of what reads the streams."""

    def __init__(self) -> None:
        self.sources: dict[tuple[int, str], Any] = {}

    def open(self, source: Any, rank: int, stream: str) -> None:
        self.sources[rank, stream] = source


class Played:
    """A RemoteHost with instances 2 and 3, and the other end of its connection."""

    def __init__(self) -> None:
        ours, self.agent = socket.socketpair()
        channel = Channel(ours, MOST_RECEIVED)
        connection: Any = SimpleNamespace(
            channel=channel,
            hello=SimpleNamespace(hostname="n1", ssh_connection=""),
            loss_check=lambda: None,
            is_direct=True,
            receive=channel.receive,
            stderr_text="",
            memory=None,
            hang_up=lambda: None,
        )
        self.channel = channel
        self.connection = connection
        self.events: list[Event] = []
        # The remote shell of mpirun's command 1.
        self.shell, self.mpirun = map(Channel, socket.socketpair())
        self.streams = Streams()
        self.feeder = StdinFeeder(Stdin(rank=3))
        job = HostJob(
            name="n1",
            ranks=[2, 3],
            num_instances=4,
            control="",
            mark="",
            directory="",
            cache="",
            merge_stderr=False,
            has_mpi=True,
            grace=1.0,
            leftovers=[],
            stdin_ranks=[3],
            environment={},
        )
        self.host = RemoteHost(connection, job, [])
        self.host.start(self.events.append, self.streams, self.feeder)

    def receive(self, data: bytes) -> None:
        """Let the host receive bytes of its agent."""
        self.agent.settimeout(200)
        for at in range(0, max(1, len(data)), 1 << 16):
            self.agent.sendall(data[at : at + (1 << 16)])
            self.host.take_in_losses()

    @property
    def is_lost(self) -> bool:
        return HostLost(host="n1", ranks=(2, 3), why=NONSENSE) in self.events

    def close(self) -> None:
        self.agent.close()
        for channel in (self.channel, self.shell, self.mpirun):
            channel.close()


@pytest.fixture
def played() -> Iterator[Played]:
    played = Played()
    yield played
    played.close()


def event(*value: Any) -> bytes:
    return protocol.pack(protocol.EVENT, json.dumps(value).encode())


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(event("Clean", 1, 0), id="of an instance of another host"),
        pytest.param(event("MpirunExited", 0), id="an event of poprun's"),
        pytest.param(
            protocol.pack(protocol.STREAM_OPENED, 0, 0), id="another host's stream"
        ),
        pytest.param(protocol.pack(protocol.STREAM_OPENED, 2, 7), id="no stream"),
        pytest.param(
            protocol.pack(protocol.STREAM_OPENED, 2, 0) * 2, id="opened twice"
        ),
        pytest.param(
            protocol.pack(protocol.INPUT_TAKEN, 2, 0), id="input of a wrong instance"
        ),
        pytest.param(
            protocol.pack(protocol.INPUT_TAKEN, 3, b"-5"), id="a negative number"
        ),
        pytest.param(
            protocol.pack(protocol.COMMAND_OUTPUT, 9, 1, b"x"), id="no such command"
        ),
        pytest.param(
            protocol.pack(protocol.COMMAND_ENDED, 9, 0), id="end of no command"
        ),
        pytest.param(protocol.pack(protocol.EVENT, b"[" * 9999), id="deep nesting"),
        pytest.param(protocol.pack(protocol.EVENT, b"\xff"), id="no JSON"),
        pytest.param(
            protocol.pack(protocol.OUTPUT, b"9" * 5000, 0, b"", 0), id="digits"
        ),
        pytest.param(protocol.pack(protocol.EVENT), id="no field"),
    ],
)
def test_a_host_that_sends_what_it_must_not_is_lost(
    played: Played, message: bytes
) -> None:
    played.receive(message)

    assert played.is_lost
    assert played.host.finished is True
    assert played.connection.memory == MemoryCounters()


def test_nothing_that_comes_after_the_loss_of_a_host_counts(played: Played) -> None:
    lost = protocol.pack(protocol.SUPERVISOR_LOST, b"guard")
    opened = protocol.pack(protocol.STREAM_OPENED, 2, 0)
    played.receive(lost + event("Clean", 2, 0) + opened)

    assert [type(event) for event in played.events] == [HostLost]
    # Nothing would ever end the stream.
    assert not played.streams.sources


def test_output_comes_with_the_time_when_it_was_written_there(played: Played) -> None:
    played.receive(protocol.pack(protocol.STREAM_OPENED, 2, 0))
    for data, written in ((b"one\n", 1_764_121_462_123), (b"two\n", 5)):
        played.receive(protocol.pack(protocol.OUTPUT, 2, 0, data, written))

    source = played.streams.sources[2, "stdout"]
    assert (source.read(9), source.written) == (b"one\n", 1_764_121_462.123)
    assert (source.read(9), source.written) == (b"two\n", 0.005)


@pytest.mark.parametrize("written", [b"", b"-1", b"now", b"9" * 15, b"9" * 5000])
def test_a_time_that_no_calendar_has_is_refused(played: Played, written: bytes) -> None:
    played.receive(protocol.pack(protocol.STREAM_OPENED, 2, 0))
    played.receive(protocol.pack(protocol.OUTPUT, 2, 0, b"one\n", written))

    assert played.is_lost


def test_more_output_than_there_is_credit_for_is_not_kept(played: Played) -> None:
    played.receive(protocol.pack(protocol.STREAM_OPENED, 2, 0))
    message = protocol.pack(protocol.OUTPUT, 2, 0, bytes(OUTPUT_WINDOW), 0)

    played.receive(message)
    assert not played.is_lost
    played.receive(message)

    assert played.is_lost
    assert len(played.streams.sources[2, "stdout"].read(1 << 20)) == 1 << 18


def test_a_command_writes_to_its_two_streams_only(played: Played) -> None:
    played.host.commands.run(played.shell, b"prted")
    played.receive(protocol.pack(protocol.COMMAND_OUTPUT, 1, 2, b"x"))
    played.receive(protocol.pack(protocol.COMMAND_OUTPUT, 1, 3, b"y"))

    assert played.mpirun.receive() == [
        (protocol.SHELL_OUTPUT, [b"2", b"x"]),
        (protocol.SHELL_ENDED, [b"255"]),
    ]
    assert played.is_lost


def test_an_event_that_is_repeated_counts_once(played: Played) -> None:
    played.receive(event("Clean", 2, 0) * 100)

    assert played.events == [Clean(rank=2, left_behind=0)]


def test_events_of_no_instance_do_not_fill_the_memory(played: Played) -> None:
    played.receive(event("AcceptFailed", 24) * (MOST_OTHER_EVENTS + 100))

    assert played.events == [AcceptFailed(errno=24)] * MOST_OTHER_EVENTS


def test_a_host_speaks_of_itself_only(played: Played) -> None:
    played.receive(event("NotUndone", "a file stays", "n0"))
    played.receive(event("DaemonKilled", "n0"))

    assert played.events == [
        NotUndone(sentence="a file stays", host="n1"),
        DaemonKilled(host="n1"),
    ]


def test_an_input_that_is_not_taken_is_not_read_without_end(played: Played) -> None:
    played.receive(protocol.pack(protocol.INPUT_TAKEN, 3, 10**9))
    sink = next(iter(played.feeder._pending))

    assert sink.write(bytes(1 << 20)) == INPUT_WINDOW
    assert sink.write(b"x") == 0


def test_a_message_that_is_too_long_ends_the_connection(played: Played) -> None:
    played.receive((MOST_RECEIVED + 1).to_bytes(4, "big"))

    assert isinstance(played.events[0], HostLost)


def test_an_agent_that_is_silent_after_the_job_is_given_up(played: Played) -> None:
    played.host.finish()
    assert not played.host.finished
    played.host.tick(time.monotonic() + 100)

    assert played.host.finished
    assert isinstance(played.events[0], HostLost)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.integers(140, 170),
            st.lists(
                st.binary(max_size=20)
                | st.sampled_from([b"0", b"1", b"2", b"3", b"", b"-1", b"1" * 40])
                | st.recursive(
                    st.none() | st.integers() | st.floats() | st.text(max_size=9),
                    lambda inner: st.lists(inner, max_size=8),
                ).map(codec.json_field)
                | st.sampled_from(list(codec.HOST_EVENTS)).map(
                    lambda name: codec.json_field([name, 2, 3, 4])
                ),
                max_size=5,
            ),
        ),
        max_size=8,
    ),
    st.binary(max_size=40),
)
def test_whatever_an_agent_sends_poprun_goes_on(
    sent: list[tuple[int, list[bytes]]], garbage: bytes
) -> None:
    played = Played()
    played.host.commands.run(played.shell, b"prted")
    try:
        data = b"".join(protocol.pack(kind, *fields) for kind, fields in sent)
        played.receive(data + garbage)
        assert all(getattr(e, "rank", 2) in (2, 3) for e in played.events)
        assert {rank for rank, _ in played.streams.sources} <= {2, 3}
        assert len(played.feeder._pending) <= 1
    finally:
        played.close()


@pytest.mark.parametrize(
    "kind", ["os", "errno", "explain_errno", "Exception", "OSError"]
)
def test_a_refusal_is_one_of_popruns_own_errors(kind: str) -> None:
    connection = AgentConnection("n1", ["/bin/true"], {}, SSH)
    refusal = connection._refusal(kind, "no")
    connection.end()

    assert type(refusal) is LaunchError


FACTS = asdict(Preflight("127.0.0.1").facts())
COUNTERS: dict[str, Any] = {"kills": 0, "limit": 1 << 40, "host_kills": None}


def answer_with(
    message: bytes, ask: Callable[[RemotePreflight], object], tmp_path: Path
) -> Any:
    """Ask an agent that sends a message; return the answer."""
    (tmp_path / "message").write_bytes(message)
    argv = ["/bin/sh", "-c", f"cat {tmp_path}/message; exec cat >/dev/null"]
    connection: Any = AgentConnection("n1", argv, os.environ, SSH)
    connection.hello = SimpleNamespace(environ={"HOME": "/home/a"})
    try:
        return ask(RemotePreflight(connection, {}))
    finally:
        connection.end()


def find_program(host: RemotePreflight) -> str:
    return host.find_program(["true"], None, "/")


@pytest.mark.parametrize("stack_limit", [-1, 0, 1 << 31, (1 << 63) - 1])
def test_a_host_may_have_any_limit_of_the_stack(
    stack_limit: int, tmp_path: Path
) -> None:
    facts = FACTS | {"stack_limit": stack_limit, "cwd": "/caf\udce9\n"}
    reply = codec.pack_json(protocol.REPLY, facts)

    there = answer_with(reply, RemotePreflight.facts, tmp_path)

    assert there == replace(
        Preflight("127.0.0.1").facts(),
        free_port=FACTS["free_port"],
        links_port=FACTS["links_port"],
        stack_limit=stack_limit,
        cwd="/caf\udce9\n",
        environ={"HOME": "/home/a"},
    )


def reply(value: Any) -> bytes:
    return codec.pack_json(protocol.REPLY, value)


@pytest.mark.parametrize(
    ("message", "ask"),
    [
        *(
            (reply(value), RemotePreflight.facts)
            for value in (
                None,
                [],
                {},
                {"machine": None},
                FACTS | {"more": 1},
                FACTS | {"machine": {}},
                FACTS | {"machine": {"nodes": []}},
                FACTS | {"machine": {"nodes": [{"index": None, "cpus": []}]}},
                FACTS | {"machine": {"nodes": [{"index": None, "cpus": [1, 1]}]}},
                FACTS | {"machine": {"nodes": [{"index": "0", "cpus": [0]}]}},
                FACTS | {"machine": {"nodes": [{"index": 0, "cpus": ["0"]}]}},
                FACTS | {"free_port": "80"},
                FACTS | {"stack_limit": 1 << 63},
                FACTS | {"stack_limit": -2},
                FACTS | {"stack_limit": None},
                FACTS | {"page_bytes": True},
                FACTS | {"cpu_quota": 1},
                FACTS | {"cwd": 5},
                FACTS | {"cwd": "/\0"},
                FACTS | {"cwd": "/\ud800"},
                FACTS | {"address": ".."},
                FACTS | {"addresses": ["10.0.0.1", "10.0.0.x"]},
                FACTS | {"addresses": "10.0.0.1"},
                FACTS | {"directory_places": [None]},
            )
        ),
        *((reply(value), find_program) for value in (None, 5, "/\0", ["/bin"])),
        *(
            (reply(value), RemotePreflight.read_memory_counters)
            for value in (
                None,
                {},
                COUNTERS | {"more": 1},
                COUNTERS | {"kills": None},
                COUNTERS | {"kills": -1},
                COUNTERS | {"limit": "1"},
                COUNTERS | {"host_kills": 1 << 64},
            )
        ),
        *(
            (message, find_program)
            for message in (
                protocol.pack(protocol.REPLY),
                protocol.pack(protocol.REPLY, b"{"),
                protocol.pack(protocol.REPLY, b'"/bin"', b""),
                protocol.pack(protocol.JOB_STARTED),
                protocol.pack(protocol.SUPERVISOR_LOST),
                protocol.pack(protocol.REFUSAL, b"LaunchError"),
                protocol.pack(protocol.HOST_CLEAN, 1),
                protocol.pack(200),
            )
        ),
    ],
)
def test_a_host_that_answers_as_it_must_not_is_lost_before_the_job(
    message: bytes, ask: Callable[[RemotePreflight], object], tmp_path: Path
) -> None:
    with pytest.raises(LaunchError) as refusal:
        answer_with(message, ask, tmp_path)

    assert str(refusal.value) == (
        f"The host n1 was lost before the job started: {NONSENSE}."
    )


@pytest.mark.parametrize(
    "changes",
    [{"environ": {"A": "\ud800"}}, {"address": "no address"}, {"clock": 1}, {"a": 1}],
)
def test_a_hello_with_values_that_no_agent_sends_is_of_another_version(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    hello = {field.name: "" for field in fields(AgentHello)} | {
        "user": 1,
        "clock": 1.0,
        "environ": {},
    }
    assert codec.unpack_value(AgentHello, hello).user == 1

    with pytest.raises(ValueError, match=r"\w"):
        codec.unpack_value(AgentHello, hello | changes)


def test_ssh_is_started_without_a_warning_of_the_thread_that_serves_popctl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]

    def fork_as_python_3_12(*arguments: object) -> object:
        warnings.warn("multi-threaded", DeprecationWarning, stacklevel=2)
        return fork_exec(*arguments)

    monkeypatch.setattr(subprocess, "_fork_exec", fork_as_python_3_12)
    connection = AgentConnection("n1", ["/bin/true"], {}, SSH)
    connection.end()


def test_what_a_host_writes_beside_the_connection_is_bounded() -> None:
    script = "echo first >&2; head -c 10000000 /dev/zero >&2; echo done"
    connection = AgentConnection("n1", ["/bin/sh", "-c", script], os.environ, SSH)
    assert connection.wait_for_exit(200) == 0

    assert connection.stderr_text.startswith("first")
    assert os.fstat(connection._errors).st_size <= 1 << 14
    connection.end()
