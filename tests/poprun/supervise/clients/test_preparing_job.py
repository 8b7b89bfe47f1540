"""A job before its first attempt: a thread serves its clients while it waits."""

import errno
import json
import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from job_clients import LIMIT_S, TestClient, close_opened, serve

from poprun.errors import HostUnreachableError, LaunchError
from poprun.popctl.jobs import listening_names
from poprun.supervise.clients.preparing_job import PreparingJob
from poprun.wire import protocol

IDENTITY = os.urandom(16).hex()


def popctl_threads() -> list[threading.Thread]:
    """Return the threads that serve clients; who runs the tests may have others."""
    return [t for t in threading.enumerate() if t.name == "popctl"]


@pytest.fixture
def job() -> Iterator[PreparingJob]:
    with PreparingJob(IDENTITY, ["echo"], (2, 4)) as preparing:
        yield preparing
    close_opened()


def shown_to(client: TestClient) -> Any:
    """Return the job that a client is shown, however long that takes."""
    assert select.select([client.channel], [], [], LIMIT_S)[0]
    [(kind, fields)] = client.messages()
    assert kind == protocol.JOB_SHOWN
    return json.loads(fields[0])


def answer(client: TestClient) -> str:
    """Return the step that a client is shown."""
    step: str = shown_to(client)["step"]
    return step


def ask(client: TestClient) -> str:
    client.ask(protocol.SHOW_JOB, 0, 0)
    return answer(client)


def test_clients_are_answered_while_the_main_thread_waits(job: PreparingJob) -> None:
    job.enter("waiting for IPUs")

    assert ask(TestClient(IDENTITY)) == "waiting for IPUs"
    job.enter("connecting to the hosts")
    assert ask(TestClient(IDENTITY)) == "connecting to the hosts"


def test_clients_are_told_the_numbers_that_auto_stands_for(job: PreparingJob) -> None:
    job.enter("waiting for IPUs")
    client = TestClient(IDENTITY)
    job.set_shape(6, 12)

    client.ask(protocol.SHOW_JOB, 0, 0)
    shown = shown_to(client)
    assert (shown["num_instances"], shown["num_replicas"]) == (6, 12)


def test_a_client_may_take_its_time_before_its_request(job: PreparingJob) -> None:
    job.enter("waiting for IPUs")
    slow = TestClient(IDENTITY)
    # It is accepted before this one, which is answered meanwhile.
    assert ask(TestClient(IDENTITY)) == "waiting for IPUs"

    assert ask(slow) == "waiting for IPUs"


def test_clients_are_told_a_directory_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory := tmp_path / "work").mkdir()
    monkeypatch.chdir(directory)
    with PreparingJob(IDENTITY, ["echo"], (2, 4)) as job:
        directory.rmdir()
        job.enter("waiting for IPUs")
        client = TestClient(IDENTITY)
        client.ask(protocol.SHOW_JOB, 0, 0)

        assert shown_to(client)["directory"] == str(directory)
    close_opened()


def test_signals_are_the_main_threads(job: PreparingJob) -> None:
    own_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    job.enter("waiting for IPUs")

    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == own_mask
    [thread] = popctl_threads()
    with open(f"/proc/self/task/{thread.native_id}/status") as file:
        fields = dict(line.split(":\t") for line in file)
    blocked = int(fields["SigBlk"], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        assert blocked & 1 << number - 1


def test_the_first_attempt_gets_the_clients_and_no_thread(job: PreparingJob) -> None:
    job.enter("waiting for IPUs")
    client = TestClient(IDENTITY)
    clients = job.hand_over()

    assert clients is not None
    assert popctl_threads() == []
    # A request that has not been served is the attempt's to serve.
    client.ask(protocol.SHOW_JOB, 0, 0)
    serve(clients)
    assert answer(client) == "waiting for IPUs"
    with job:
        pass
    assert IDENTITY in listening_names()
    clients.close()


def test_a_run_that_ends_before_its_first_attempt_leaves_nothing(
    job: PreparingJob,
) -> None:
    with job:
        job.enter("waiting for IPUs")

    assert popctl_threads() == []
    assert IDENTITY not in listening_names()
    assert job.hand_over() is None


def test_clients_are_told_why_a_run_ends_before_its_first_attempt(
    job: PreparingJob,
) -> None:
    with suppress(HostUnreachableError), job:
        job.enter("connecting to the hosts")
        (client := TestClient(IDENTITY)).ask(protocol.SHOW_JOB, 10**6, 1)
        assert answer(client) == "connecting to the hosts"
        raise HostUnreachableError("The host b cannot be used.")

    assert client.messages() == [
        (protocol.JOB_ENDED, [b"125", b"The host b cannot be used."])
    ]


def test_a_job_that_may_have_no_more_threads_says_so(
    job: PreparingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(LaunchError) as raised:
        job.enter("waiting for IPUs")

    assert str(raised.value).startswith(
        "The thread that answers popctl while the job waits cannot be started: "
        "Resource temporarily unavailable. The limit on processes has been reached"
    )
    assert IDENTITY not in listening_names()


def test_a_job_that_may_have_no_more_files_says_so(
    job: PreparingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(value: int, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "eventfd", refuse)
    with pytest.raises(LaunchError, match="ulimit -n"):
        job.enter("waiting for IPUs")

    assert IDENTITY not in listening_names()


def test_a_phase_that_does_not_wait_opens_no_socket(job: PreparingJob) -> None:
    job.enter("checking the hosts")

    assert popctl_threads() == []
    assert IDENTITY not in listening_names()
    assert job.hand_over() is None
