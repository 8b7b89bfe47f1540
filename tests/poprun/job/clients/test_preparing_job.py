"""A job before its first attempt: its clients are served by SIGIO."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
from job_clients import TestClient, close_opened

from poprun.helpers import protocol
from poprun.job.clients.preparing_job import PreparingJob
from poprun.popctl.jobs import listening_names

IDENTITY = os.urandom(16).hex()


@pytest.fixture
def job() -> Iterator[PreparingJob]:
    preparing = PreparingJob(IDENTITY, ["echo"], (2, 4))
    yield preparing
    if (clients := preparing.hand_over()) is not None:
        clients.close()
    close_opened()


def steps_of(client: TestClient) -> list[str]:
    return [json.loads(fields[0])["step"] for _, fields in client.messages()]


def test_clients_are_answered_in_a_phase_that_waits(job: PreparingJob) -> None:
    job.enter("waiting for IPUs")
    view: list[bytes] = []

    def ask() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"\0popctl-{IDENTITY}")
            client.sendall(
                protocol.pack(protocol.SHOW_JOB, protocol.VERSION, b"", 0, 0)
            )
            view.append(client.recv(1 << 16))

    # The handler runs in this thread.
    other = threading.Thread(target=ask)
    other.start()
    other.join()

    assert b'"step": "waiting for IPUs"' in view[0]


def test_a_client_that_comes_before_the_kernel_sends_signals_is_answered(
    job: PreparingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    early: list[TestClient] = []
    real = PreparingJob._set_async

    def set_late(self: PreparingJob, descriptor: int, flag: int) -> None:
        if flag:
            early.append(client := TestClient(IDENTITY))
            client.ask(protocol.SHOW_JOB, 0, 0)
        real(self, descriptor, flag)

    monkeypatch.setattr(PreparingJob, "_set_async", set_late)
    job.enter("waiting for IPUs")

    assert steps_of(early[0]) == ["waiting for IPUs"]


def test_a_phase_that_waits_for_nobody_opens_no_socket(job: PreparingJob) -> None:
    job.enter("checking the hosts")

    assert signal.getsignal(signal.SIGIO) is signal.SIG_DFL
    assert IDENTITY not in listening_names()
    assert job.hand_over() is None
