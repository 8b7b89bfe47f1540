"""What clients may ask of a job, and what a hostile one cannot do to it."""

import json
import os
import signal
import socket
import time
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from job_clients import TestClient, make_clients, serve
from plans import FACTS, make_request, planned

from poprun.host_specs import HostSpec
from poprun.plan.topology import Topology
from poprun.plan.values import Plan
from poprun.supervise.clients import server
from poprun.supervise.clients.job_view import AttemptView
from poprun.supervise.clients.server import (
    MOST_CLIENTS,
    MOST_UNKNOWN,
    MOST_WAITING,
    Clients,
    Controls,
)
from poprun.supervise.job_state import Phase
from poprun.wire import protocol
from poprun.wire.events import (
    Event,
    Exited,
    Interrupted,
    MembersChanged,
    StacksAvailable,
    Started,
    StartedAgain,
    UsageMeasured,
)

JOB = "c0ffee" + os.urandom(13).hex()
LIMIT_S = 200.0


class Supervisor:
    """What clients do to a job, recorded."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.phase = Phase.RUNNING
        self.measured = 0
        self.asked: list[tuple[int, int]] = []
        self.said: list[str] = []
        self.stderr: dict[int, bytes] = {}

    def measure(self) -> None:
        self.measured += 1

    def controls(self) -> Controls:
        return Controls(
            emit=self.events.append,
            phase=lambda: self.phase,
            measure=self.measure,
            ask_for_stacks=lambda rank, pid: self.asked.append((rank, pid)),
            tail=lambda rank: self.stderr.get(rank, b""),
            say=self.said.append,
            error_stream="stderr",
        )


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


@pytest.fixture
def clients(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> Clients:
    monkeypatch.setattr("poprun.supervise.stacks.ANSWER_S", LIMIT_S)
    opened = make_clients(3, JOB)
    opened.begin(supervisor.controls())
    for rank in range(3):
        opened.listen(Started(rank=rank, pid=100 + rank))
        opened.tap.open(rank)
        opened.tap.open(rank)
    return opened


def ask(clients: Clients, kind: int, *fields: bytes | int) -> TestClient:
    client = TestClient(JOB)
    client.ask(kind, *fields)
    serve(clients)
    return client


def show(clients: Clients, *, with_instances: bool = True) -> dict[str, object]:
    client = ask(clients, protocol.SHOW_JOB, 0, int(with_instances))
    [(kind, [value])] = client.messages()
    assert kind == protocol.JOB_SHOWN
    assert client.has_ended
    shown: dict[str, object] = json.loads(value)
    return shown


def test_instances_that_have_not_joined_are_shown(clients: Clients) -> None:
    clients.listen(StartedAgain(rank=2))
    assert show(clients)["joining"] == {}
    clients.listen(Started(rank=2, pid=103))
    joining = show(clients, with_instances=False)["joining"]
    assert isinstance(joining, dict)
    [(rank, seconds)] = joining.items()
    assert rank == "2"
    assert isinstance(seconds, float)
    clients.listen(
        MembersChanged(
            generation=1, members=(0, 2), lost=(1,), added=(2,), why="x", seconds=1.0
        )
    )
    assert show(clients)["joining"] == {}


def test_a_job_is_shown_with_its_instances(clients: Clients) -> None:
    clients.listen(
        Exited(
            rank=1,
            status=3 << 8,
            at_ns=0,
            user_s=0.0,
            system_s=0.0,
            peak_kib=0,
            by_itself=True,
        )
    )
    clients.listen(UsageMeasured(rank=0, cpu_s=2.5, memory_kib=4096, num_processes=3))
    clients.listen(
        UsageMeasured(
            rank=2,
            cpu_s=2.5,
            memory_kib=4096,
            num_processes=3,
            num_groups=1,
            num_calls=7,
            total_bytes=800,
            operation="all_reduce",
            call_bytes=400,
            waited_s=1.5,
            missing=(0, 1),
        )
    )
    clients.tap.feed(0, "stdout", b"epoch 1\n")

    job = show(clients)

    for name in ("started", "elapsed"):
        assert isinstance(job.pop(name), float)
    instances = job.pop("instances")
    assert job == {
        "version": 1,
        "id": JOB,
        "attempt": 0,
        "pid": os.getpid(),
        "program": ["python", "train \\xff.py"],
        "directory": "/",
        "phase": "running",
        "step": "",
        "hosts": ["localhost"],
        "num_instances": 3,
        "num_running": 2,
        "num_ended": 1,
        "generation": 0,
        "changed": "",
        "joining": {},
        "num_replicas": 6,
        "num_ipus": 0,
        "partition": None,
        "output_directory": None,
    }
    assert isinstance(instances, list)
    assert [i["phase"] for i in instances] == ["running", "ended", "running"]
    assert [i["exit_code"] for i in instances] == [None, 3, None]
    assert all(isinstance(i.pop("elapsed"), float) for i in instances)
    assert instances[0] == {
        "index": 0,
        "program": "train \\xff.py",
        "host": "localhost",
        "is_local": True,
        "pid": 100,
        "phase": "running",
        "exit_code": None,
        "rank": 0,
        "first_replica": 0,
        "num_replicas": 2,
        "num_ipus": 0,
        "cpu_seconds": 2.5,
        "memory_kib": 4096,
        "num_processes": 3,
        "num_calls": None,
        "total_bytes": None,
        "call": None,
        "last_line": "epoch 1",
    }
    assert instances[2]["num_calls"] == 7
    assert instances[2]["total_bytes"] == 800
    assert instances[2]["call"] == {
        "operation": "all_reduce",
        "bytes": 400,
        "waited": 1.5,
        "missing": [0, 1],
    }


def test_the_usage_on_another_host_is_waited_for(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REMOTE_USAGE_S", 3600.0)
    there = replace(FACTS, environ={})
    clients = make_clients(1, JOB, hosts=[HostSpec(name="b")], facts=[there])
    clients.begin(supervisor.controls())
    client = ask(clients, protocol.SHOW_JOB, 0, 1)
    assert (supervisor.measured, client.messages()) == (1, [])
    clients.tick(time.monotonic() + 3600)

    [(kind, _)] = client.messages()
    assert kind == protocol.JOB_SHOWN


def test_the_hosts_of_a_job_are_those_of_its_present_members() -> None:
    def plan(*names: str) -> Plan:
        hosts = [HostSpec(name=name) for name in names]
        topology = Topology(
            num_instances=len(hosts), num_replicas=len(hosts), num_hosts=len(hosts)
        )
        return planned(make_request(topology, hosts, [FACTS] * len(hosts)))

    view = AttemptView(plan("a", "b"), lambda rank: "")
    view.extend(plan("a", "b", "c"), [2])
    assert view.fields["hosts"] == ["a", "b"]
    changed: Any = {"why": "", "lost": (1,), "added": (2,), "seconds": 1.0}
    view.listen(MembersChanged(generation=1, members=(0, 2), **changed))

    assert view.fields["hosts"] == ["a", "c"]


def test_a_list_of_jobs_measures_nothing(
    clients: Clients, supervisor: Supervisor
) -> None:
    assert "instances" not in show(clients, with_instances=False)
    assert supervisor.measured == 0


@pytest.mark.parametrize(
    ("phase", "word"),
    [
        (Phase.RUNNING, "running"),
        (Phase.TRACING, "stopping"),
        (Phase.KILLING, "stopping"),
        (Phase.LEAVING, "ending"),
    ],
)
def test_the_phase_of_a_job_is_one_word(
    clients: Clients, supervisor: Supervisor, phase: Phase, word: str
) -> None:
    supervisor.phase = phase

    assert show(clients)["phase"] == word


def test_a_job_starts_until_its_last_instance_runs(supervisor: Supervisor) -> None:
    clients = make_clients(2, JOB)
    clients.begin(supervisor.controls())
    clients.listen(Started(rank=1, pid=101))
    assert show(clients)["phase"] == "starting"

    clients.listen(Started(rank=0, pid=100))
    assert show(clients)["phase"] == "running"


def test_a_viewer_is_shown_the_job_again_and_again(
    clients: Clients, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LEAST_INTERVAL_S", 0.01)
    client = ask(clients, protocol.SHOW_JOB, 1, 1)

    shown = 0
    ends_by = time.monotonic() + LIMIT_S
    while shown < 3:
        assert time.monotonic() < ends_by
        time.sleep(0.01)
        serve(clients)
        shown += len(client.messages())

    assert not client.has_ended
    assert supervisor.measured >= 2


def test_the_instances_are_measured_no_more_often_than_twice_a_second(
    clients: Clients, supervisor: Supervisor
) -> None:
    began = time.monotonic()
    for _ in range(10):
        show(clients)

    assert supervisor.measured <= 1 + (time.monotonic() - began) / 0.5


def test_stop_is_an_interrupt_with_the_name_of_the_client(
    clients: Clients, supervisor: Supervisor
) -> None:
    client = ask(clients, protocol.STOP_JOB, 0)

    who = f"popctl (PID {os.getpid()})"
    assert supervisor.events == [Interrupted(signal=signal.SIGINT, client=who)]
    assert client.messages() == [(protocol.REQUEST_ACCEPTED, [])]

    clients.end(130, "Stopped.")
    assert client.messages() == [(protocol.JOB_ENDED, [b"130", b"Stopped."])]
    assert client.has_ended


def test_a_client_that_has_left_stops_nothing(
    clients: Clients, supervisor: Supervisor
) -> None:
    client = TestClient(JOB)
    client.ask(protocol.STOP_JOB, 0)
    client.channel.close()
    serve(clients)
    show(clients)

    assert supervisor.events == []


def test_stop_at_once_is_a_second_interrupt(
    clients: Clients, supervisor: Supervisor
) -> None:
    ask(clients, protocol.STOP_JOB, 1)

    assert len(supervisor.events) == 2


def test_the_output_of_one_instance_comes_from_now_on(clients: Clients) -> None:
    clients.tap.feed(1, "stdout", b"before\n")
    client = ask(clients, protocol.WATCH_OUTPUT, 1)
    clients.tap.feed(1, "stdout", b"\xff\n")
    clients.tap.feed(2, "stdout", b"of another\n")
    clients.tap.feed(1, "stderr", b"error\n")
    clients.tap.close(1, "stdout")
    clients.tap.close(1, "stderr")
    serve(clients)

    assert client.messages() == [
        (protocol.REQUEST_ACCEPTED, []),
        (protocol.INSTANCE_OUTPUT, [b"stdout", b"\xff\n"]),
        (protocol.INSTANCE_OUTPUT, [b"stderr", b"error\n"]),
        (protocol.REQUEST_DONE, [b"The output of instance 1 has ended."]),
    ]
    assert client.has_ended


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        (
            protocol.WATCH_OUTPUT,
            [3],
            b"There is no instance 3 in the job: its instances are 0 to 2.",
        ),
        (
            protocol.DUMP_STACKS,
            [b"0,7"],
            b"There is no instance 7 in the job: its instances are 0 to 2.",
        ),
    ],
)
def test_an_instance_that_there_is_not_is_refused(
    clients: Clients, kind: int, fields: list[bytes | int], sentence: bytes
) -> None:
    client = ask(clients, kind, *fields)

    assert client.messages() == [(protocol.REQUEST_REFUSED, [sentence])]
    assert client.has_ended


def test_the_output_of_an_instance_that_has_ended_is_refused(clients: Clients) -> None:
    clients.listen(
        Exited(
            rank=1,
            status=0,
            at_ns=0,
            user_s=0.0,
            system_s=0.0,
            peak_kib=0,
            by_itself=True,
        )
    )
    clients.tap.close(1, "stdout")
    clients.tap.close(1, "stderr")

    client = ask(clients, protocol.WATCH_OUTPUT, 1)

    assert client.messages() == [(protocol.REQUEST_REFUSED, [b"Instance 1 has ended."])]


def test_a_client_that_never_reads_loses_output_and_is_told_how_much(
    clients: Clients,
) -> None:
    client = ask(clients, protocol.WATCH_OUTPUT, 0)
    piece = b"x" * 9999 + b"\n"
    for _ in range(1000):
        clients.tap.feed(0, "stdout", piece)
    serve(clients)
    assert clients._clients[0].link.num_unsent <= MOST_WAITING

    messages = client.messages()
    while more := (serve(clients), client.messages())[1]:
        messages += more
    clients.tap.feed(0, "stdout", b"last\n")
    serve(clients)
    messages += client.messages()

    assert messages.pop(0) == (protocol.REQUEST_ACCEPTED, [])
    *whole, (dropped_kind, [dropped]), last = messages
    assert {kind for kind, _ in whole} == {protocol.INSTANCE_OUTPUT}
    assert dropped_kind == protocol.OUTPUT_DROPPED
    assert last == (protocol.INSTANCE_OUTPUT, [b"stdout", b"last\n"])
    received = sum(len(fields[1]) for _, fields in whole)
    assert received >= MOST_WAITING // 2
    assert received + int(dropped) == 1000 * len(piece)


def play_stacks(
    clients: Clients, supervisor: Supervisor, rank: int, pids: tuple[int, ...]
) -> None:
    """Let an instance answer which Pythons it has, and the first show its stacks."""
    clients.listen(StacksAvailable(rank=rank, pids=pids))
    for _ in pids[:1]:
        text = b"File of %d\n" % rank
        supervisor.stderr[rank] = text
        clients.tap.feed(rank, "stdout", b"no stack\n")
        clients.tap.feed(rank, "stderr", text)


def test_the_stacks_of_the_instances_come_one_after_the_other(
    clients: Clients, supervisor: Supervisor
) -> None:
    client = ask(clients, protocol.DUMP_STACKS, b"0,1,2")
    other = ask(clients, protocol.DUMP_STACKS, b"1")
    messages = client.messages()
    ends_by = time.monotonic() + LIMIT_S
    answered: set[int] = set()
    while not client.has_ended:
        assert time.monotonic() < ends_by
        asked = [rank for rank, pid in supervisor.asked if not pid]
        for rank in set(asked) - answered:
            answered.add(rank)
            play_stacks(clients, supervisor, rank, () if rank == 1 else (100 + rank,))
        time.sleep(0.01)
        serve(clients)
        messages += client.messages()

    written = b"".join(f[1] for k, f in messages if k == protocol.INSTANCE_OUTPUT)
    assert written == (
        b"Python stacks of instance 0 (PID 100):\nFile of 0\n"
        b"Python stacks of instance 2 (PID 102):\nFile of 2\n"
    )
    assert messages[0] == (protocol.REQUEST_ACCEPTED, [])
    assert messages[-1] == (
        protocol.REQUEST_DONE,
        [
            b"Instance 1 has shown no Python stacks: Python does not run there, or is "
            b"stopped."
        ],
    )
    [(kind, [sentence])] = other.messages()
    assert kind == protocol.REQUEST_REFUSED
    assert b"is getting the job's Python stacks at the moment" in sentence


def test_a_process_may_go_on_to_write_its_stacks_after_a_long_wait(
    clients: Clients, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poprun.supervise.stacks.QUIET_S", LIMIT_S)
    ask(clients, protocol.DUMP_STACKS, b"0")
    play_stacks(clients, supervisor, 0, (100,))

    clients.tick(time.monotonic() - LIMIT_S)

    assert clients.deadline(0.0) > time.monotonic()


def test_a_client_that_leaves_ends_its_dump(
    clients: Clients, supervisor: Supervisor
) -> None:
    client = ask(clients, protocol.DUMP_STACKS, b"0,1,2")
    clients.listen(StacksAvailable(rank=0, pids=(100,)))
    client.channel.close()
    serve(clients)
    clients.tap.feed(0, "stderr", b"File\n")

    assert ask(clients, protocol.DUMP_STACKS, b"1").messages() == [
        (protocol.REQUEST_ACCEPTED, [])
    ]


def test_a_job_that_stops_shows_no_stacks(
    clients: Clients, supervisor: Supervisor
) -> None:
    running = ask(clients, protocol.DUMP_STACKS, b"0")
    supervisor.phase = Phase.STOPPING
    serve(clients)
    late = ask(clients, protocol.DUMP_STACKS, b"0")

    assert running.messages()[-1][0] == protocol.REQUEST_REFUSED
    assert late.messages()[-1][0] == protocol.REQUEST_REFUSED


def test_clients_are_bounded_in_number_and_the_surplus_is_told(
    clients: Clients,
) -> None:
    own = [ask(clients, protocol.WATCH_OUTPUT, 0) for _ in range(MOST_CLIENTS)]
    surplus = ask(clients, protocol.WATCH_OUTPUT, 0)

    assert surplus.messages() == [
        (
            protocol.REQUEST_REFUSED,
            [b"The job has 16 other clients, which is the maximum. End one of them."],
        )
    ]
    own[0].channel.close()
    serve(clients)
    assert ask(clients, protocol.WATCH_OUTPUT, 0).messages() == [
        (protocol.REQUEST_ACCEPTED, [])
    ]


def test_a_thousand_connections_that_say_nothing_take_16_descriptors(
    clients: Clients,
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    silent = []
    for _ in range(1000):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(LIMIT_S)
        sock.connect(f"\0popctl-{JOB}")
        silent.append(sock)
        serve(clients, 1)
    serve(clients, 30)

    taken = len(os.listdir("/proc/self/fd")) - before - len(silent)
    for sock in silent:
        sock.close()
    assert taken <= MOST_UNKNOWN
    serve(clients)
    assert show(clients)["num_instances"] == 3


@pytest.mark.parametrize(
    "words",
    [
        b"\xff" * 1000,
        b"GET / HTTP/1.1\r\n\r\n",
        protocol.pack(protocol.SHOW_JOB, 1, b"key", 0, 1),
        protocol.pack(protocol.SHOW_JOB, 99, b"", 0, 1),
        protocol.pack(protocol.SHOW_JOB, 1, b"", -1, 1),
        protocol.pack(protocol.STOP_JOB, 1, b""),
        protocol.pack(protocol.WATCH_OUTPUT, 1, b"", 1 << 40),
        protocol.pack(protocol.DUMP_STACKS, 1, b"", b""),
        protocol.pack(protocol.DUMP_STACKS, 1, b"", b"0,,1"),
        protocol.pack(protocol.HELLO, 1, b"", 0, b"host", 1, 1),
    ],
)
def test_a_client_that_sends_nonsense_is_closed(
    clients: Clients, supervisor: Supervisor, words: bytes
) -> None:
    client = TestClient(JOB)
    client.channel.sock.send(words)
    serve(clients)

    assert client.messages() == []
    assert client.has_ended
    assert supervisor.events == []
    assert clients._clients == []


def test_a_client_that_sends_a_second_request_is_closed(clients: Clients) -> None:
    client = ask(clients, protocol.WATCH_OUTPUT, 0)
    client.ask(protocol.STOP_JOB, 0)
    serve(clients)
    clients.tap.feed(0, "stdout", b"more\n")

    assert client.messages() == [(protocol.REQUEST_ACCEPTED, [])]
    assert client.has_ended


def test_between_two_attempts_a_job_is_shown_and_stopped_and_no_more(
    clients: Clients, supervisor: Supervisor
) -> None:
    reader = ask(clients, protocol.WATCH_OUTPUT, 0)
    dump = ask(clients, protocol.DUMP_STACKS, b"0")
    clients.pause()
    assert clients.wait(0.05) == ""
    clients.tap.feed(0, "stdout", b"late\n")

    sentence = b"The attempt is over; the job is being started again."
    assert reader.messages() == [
        (protocol.REQUEST_ACCEPTED, []),
        (protocol.REQUEST_DONE, [sentence]),
    ]
    assert dump.messages()[-1][0] == protocol.REQUEST_REFUSED
    late = ask(clients, protocol.DUMP_STACKS, b"0")
    assert late.messages()[-1][0] == protocol.REQUEST_REFUSED
    assert show(clients)["phase"] == "restarting"

    ask(clients, protocol.STOP_JOB, 0)
    assert clients.wait(600) == f"popctl (PID {os.getpid()})"
    assert supervisor.events == []


def test_a_descriptor_ends_the_wait(clients: Clients) -> None:
    end = os.eventfd(1)
    try:
        assert clients.wait(inf, until=end) == ""
    finally:
        os.close(end)


def test_the_next_attempt_is_shown_to_those_who_have_waited(
    clients: Clients, supervisor: Supervisor
) -> None:
    clients.pause()
    other = make_clients(2)
    clients.show(other._view, other.tap)
    clients.begin(supervisor.controls())

    assert show(clients)["num_instances"] == 2
    assert show(clients)["phase"] == "starting"
