"""How agents are started: by a command that a script plays, on this machine."""

import os
import select
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from conftest import wait_for

from poprun import __version__
from poprun.errors import HostUnreachableError, LaunchError
from poprun.host_specs import HostSpec
from poprun.reach.connections import agents
from poprun.reach.connections.agents import open_agents
from poprun.reach.connections.other_command import find_command
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.wire import codec, protocol
from poprun.wire.agent_hello import PREAMBLE

A, B = HostSpec(name="a"), HostSpec(name="b")
# Runs the command that is its last argument, as ssh does on a host.
RUN = 'for word; do command=$word; done; exec sh -c "$command"'


@pytest.fixture(autouse=True)
def long_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let agents take long to start, as all that runs beside a test may be busy."""
    monkeypatch.setattr(agents, "ANSWER_LIMIT_S", 200.0)


class FakeSsh:
    """A script in the place of ssh."""

    def __init__(self, directory: Path, script: str) -> None:
        path = directory / "ssh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        self.ssh = find_command(str(path), {})

    def open(
        self, *hosts: HostSpec, until: Callable[[], bool] = lambda: True
    ) -> list[str]:
        """Start agents, end them, and return the names of their hosts.

        Args:
            until: What is so before poprun looks for answers.
        """
        phases: list[str] = []

        def stop(phase: str) -> None:
            # The first phase is before ssh is started.
            if phases:
                wait_for(until, "what the hosts do")
            phases.append(phase)

        environ = {"PATH": os.environ["PATH"]}
        connections = open_agents(
            dict.fromkeys(hosts, self.ssh), environ, stop
        ).values()
        for connection in connections:
            connection.end()
        return [connection.name for connection in connections]

    def refusal(
        self, *hosts: HostSpec, until: Callable[[], bool] = lambda: True
    ) -> str:
        with pytest.raises(HostUnreachableError) as refusal:
            self.open(*hosts, until=until)
        return str(refusal.value)


def hello(**changes: object) -> str:
    """Return a shell command that answers as an agent with these values would."""
    fields = {
        "version": __version__,
        "python": agents._python(),
        "hostname": "a",
        "user": 0,
        "machine": "",
        "clock": time.time(),
        "environ": {},
        "ssh_connection": "",
        "address": "",
        "temporary_failure": "",
        **changes,
    }
    data = PREAMBLE + codec.pack_json(protocol.AGENT_HELLO, fields)
    octal = "".join(f"\\{byte:03o}" for byte in data)
    return f"printf '{octal}'; cat >/dev/null"


def test_what_a_login_shell_prints_before_is_skipped(tmp_path: Path) -> None:
    fake = FakeSsh(tmp_path, f"echo Welcome; echo on >&2; {RUN}")

    assert fake.open(A, B) == ["a", "b"]


def test_a_question_may_be_longer_than_what_fits_into_the_connection_at_once(
    tmp_path: Path,
) -> None:
    fake = FakeSsh(tmp_path, RUN)
    environ = {"PATH": os.environ["PATH"]}
    [connection] = open_agents({A: fake.ssh}, environ).values()
    try:
        question = [["true", "x" * (4 << 20)], "/usr/bin:/bin", "/"]
        path = connection.ask(protocol.FIND_PROGRAM, question, str)
    finally:
        connection.end()

    assert path == "/usr/bin/true"


def test_what_an_sshd_drops_is_tried_again(tmp_path: Path) -> None:
    dropped = "Connection closed by 10.0.0.1 port 22"
    once = tmp_path / "once"
    fake = FakeSsh(
        tmp_path, f"mkdir {once} 2>/dev/null && echo {dropped} >&2 && exit 255\n{RUN}"
    )

    assert fake.open(A) == ["a"]


def test_each_failing_host_is_named_in_a_line_of_its_own(tmp_path: Path) -> None:
    fake = FakeSsh(tmp_path, "echo no >&2; exit 255")

    assert [line.split(":")[0] for line in fake.refusal(A, B).splitlines()] == [
        "The host a cannot be used",
        "The host b cannot be used",
    ]


def test_a_host_that_says_nothing_is_named_and_its_ssh_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "ANSWER_LIMIT_S", 0.5)
    # As ssh has a process of its own to reach a jump host.
    fake = FakeSsh(
        tmp_path,
        f"cd {tmp_path}; sleep 999 & echo $! >new; mv new pid; exec sleep 999",
    )

    text = fake.refusal(A, until=(tmp_path / "pid").exists)

    assert text.startswith("The host a cannot be used: it does not answer within")
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not Path(f"/proc/{pid}/cmdline").exists(), "the end of ssh")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        pytest.param(
            partial(hello, version="0.0.1"),
            f"it has poprun 0.0.1 in Python {agents._python()}, but this host has "
            f"poprun {__version__} in Python {agents._python()}. Install the same "
            "there; --synchronise-python-venv=yes copies a virtual environment.",
            id="poprun",
        ),
        pytest.param(
            partial(hello, python="3.12.0"),
            f"it has poprun {__version__} in Python 3.12.0, but this host has poprun "
            f"{__version__} in Python {agents._python()}. Install the same there; "
            "--synchronise-python-venv=yes copies a virtual environment.",
            id="python",
        ),
        pytest.param(
            lambda: r"printf '\n\000poprun-agent-77\nxyz'; cat >/dev/null",
            f"it has another version of poprun, but this host has poprun {__version__} "
            f"in Python {agents._python()}. Install the same there; "
            "--synchronise-python-venv=yes copies a virtual environment.",
            id="messages",
        ),
        pytest.param(
            partial(hello, new_field=1),
            f"it has another version of poprun, but this host has poprun {__version__} "
            f"in Python {agents._python()}. Install the same there; "
            "--synchronise-python-venv=yes copies a virtual environment.",
            id="fields",
        ),
        pytest.param(
            partial(hello, clock=10**400),
            f"it has another version of poprun, but this host has poprun {__version__} "
            f"in Python {agents._python()}. Install the same there; "
            "--synchronise-python-venv=yes copies a virtual environment.",
            id="clock",
        ),
        pytest.param(
            partial(
                hello, temporary_failure="no file can be made in /tmp: make room there"
            ),
            "no file can be made in /tmp: make room there; see: {ssh} a df -h /tmp",
            id="no-room",
        ),
    ],
)
def test_a_host_that_is_not_ready_is_refused(
    tmp_path: Path, answer: Callable[[], str], sentence: str
) -> None:
    fake = FakeSsh(tmp_path, answer())

    assert fake.refusal(A) == (
        f"The host a cannot be used: {sentence.format(ssh=fake.ssh.text)}"
    )


@pytest.mark.parametrize(
    ("offset", "words"), [(1000, "s ahead of the clock"), (-1000, "s behind the clock")]
)
def test_a_host_whose_clock_is_far_off_is_refused(
    tmp_path: Path, offset: float, words: str
) -> None:
    fake = FakeSsh(tmp_path, hello(clock=time.time() + offset))

    text = fake.refusal(A)

    assert words in text
    assert text.endswith(
        f"Set both clocks with NTP; see: {fake.ssh.text} a timedatectl"
    )


def test_answers_that_came_while_poprun_was_stopped_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "ANSWER_LIMIT_S", 0.1)
    monkeypatch.setattr(agents, "timeout_factor", lambda: 1.0)
    stopped, answered = tmp_path / "stopped", tmp_path / "answered"
    answer = hello().replace("; cat", f"; touch {answered}; cat")
    fake = FakeSsh(tmp_path, f"until test -e {stopped}; do sleep 0.01; done; {answer}")

    def stop(phase: str) -> None:
        # The first phase is before ssh is started.
        if phases:
            stopped.touch()
            wait_for(answered.exists, "the answer")
            time.sleep(0.2)
        phases.append(phase)

    phases: list[str] = []
    environ = {"PATH": os.environ["PATH"]}
    [connection] = open_agents({A: fake.ssh}, environ, stop).values()
    connection.end()


def test_a_reply_that_came_while_poprun_was_stopped_counts(tmp_path: Path) -> None:
    fake = FakeSsh(tmp_path, RUN)
    [connection] = open_agents({A: fake.ssh}, {"PATH": os.environ["PATH"]}).values()
    try:
        connection.channel.send(codec.pack_json(protocol.READ_MEMORY, None))
        assert select.select([connection], [], [], 200)[0]
        reply = connection.answer(MemoryCounters, within=-60)
    finally:
        connection.end()

    assert isinstance(reply, MemoryCounters)


def test_half_an_answer_of_one_host_keeps_no_other_from_being_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "ANSWER_LIMIT_S", 1.0)
    monkeypatch.setattr(agents, "timeout_factor", lambda: 1.0)
    octal = "".join(f"\\{byte:03o}" for byte in PREAMBLE)
    half = f"printf '{octal}'; touch {tmp_path}/half; exec sleep 999"
    # The other host answers when half of this one's answer is there.
    whole = hello().replace("; cat", f"; touch {tmp_path}/whole; cat")
    whole = f"until test -e {tmp_path}/half; do sleep 0.01; done; {whole}"
    fake = FakeSsh(tmp_path, f'case "$*" in *" a "*) {half};; esac; {whole}')

    assert fake.refusal(A, B, until=(tmp_path / "whole").exists) == (
        "The host a cannot be used: it does not answer within 1 s. See: "
        f"{fake.ssh.shown(A)}"
    )


def test_what_is_no_message_after_the_first_bytes_is_of_another_version(
    tmp_path: Path,
) -> None:
    octal = "".join(f"\\{byte:03o}" for byte in PREAMBLE + b"\xff" * 40)
    fake = FakeSsh(tmp_path, f"printf '{octal}'; cat >/dev/null")

    assert "it has another version of poprun, but this host has" in fake.refusal(A)


def test_an_agent_that_ends_before_the_job_is_reported_at_once(tmp_path: Path) -> None:
    answer = hello().replace("; cat >/dev/null", "; echo 'broken pipe' >&2")
    fake = FakeSsh(tmp_path, answer)
    [connection] = open_agents({A: fake.ssh}, {}).values()

    with pytest.raises(LaunchError) as refusal:
        connection.ask(protocol.READ_MEMORY)
    connection.end()

    assert str(refusal.value) == (
        "The host a was lost before the job started: the connection to it has "
        "ended. ssh says: 'broken pipe'."
    )


def test_an_agent_whose_guard_is_killed_before_the_job_is_reported(
    tmp_path: Path,
) -> None:
    lost = protocol.pack(protocol.SUPERVISOR_LOST, protocol.GUARD)
    octal = "".join(f"\\{byte:03o}" for byte in lost)
    fake = FakeSsh(tmp_path, hello().replace("; cat", f"; printf '{octal}'; cat"))
    [connection] = open_agents({A: fake.ssh}, {}).values()

    with pytest.raises(LaunchError) as refusal:
        connection.answer()
    connection.end()

    assert str(refusal.value) == (
        "The host a was lost before the job started: poprun's guard there was killed."
    )


def test_lines_of_ssh_are_read_without_their_carriage_returns(tmp_path: Path) -> None:
    fake = FakeSsh(tmp_path, r"printf 'Connection refused.\r\n' >&2; exit 255")

    assert "ssh says: 'Connection refused'. " in fake.refusal(A)


def test_a_job_that_can_do_without_a_host_learns_why_it_cannot_be_used(
    tmp_path: Path,
) -> None:
    fake = FakeSsh(tmp_path, f'case " $* " in *" a "*) {RUN};; *) exit 255;; esac')
    failures: dict[HostSpec, str] = {}
    opened = open_agents(
        {A: fake.ssh, B: fake.ssh}, {"PATH": os.environ["PATH"]}, failures=failures
    )
    for connection in opened.values():
        connection.end()

    assert [*opened] == [A]
    assert [*failures] == [B]
    assert failures[B].startswith("The host b cannot be used")
