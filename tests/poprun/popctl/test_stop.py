"""`popctl stop` where the command line names no job."""

from collections.abc import Iterator
from typing import Any

import pytest

from poprun.popctl import stop
from poprun.wire import protocol

VIEW = {"program": ["python", "a b.py", "x\n" + "y" * 60], "elapsed": 3723.0}


class FakeConnection:
    """A connection to a job that accepts what it is asked for, and ends."""

    identity, name = "cafe" * 8, "cafecafe"

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self._answers: Iterator[tuple[int, list[bytes]]] = iter(
            [
                (protocol.REQUEST_ACCEPTED, []),
                (protocol.JOB_ENDED, [b"130", b"Stopped."]),
            ]
        )

    def send(self, *message: int) -> None:
        self.asked.append(message)

    def receive(self, timeout: float | None) -> tuple[int, list[bytes]]:
        return next(self._answers)

    def close(self) -> None:
        pass


def run_stop(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Any]:
    """Run the command, and return the words by which it has chosen a job."""
    chosen: list[Any] = []

    def choose(word: str | None) -> FakeConnection:
        chosen.append(word)
        return FakeConnection()

    monkeypatch.setattr(stop, "choose_job", choose)
    monkeypatch.setattr(stop, "show_job", lambda connection: VIEW)
    stop.command.main(list(words), standalone_mode=False)
    return chosen


def test_the_only_job_is_described_by_its_program_and_its_age(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = run_stop(monkeypatch)

    # The job that was described is the one that is stopped.
    assert chosen == [None, FakeConnection.identity]
    program = f"python 'a b.py' 'x\\n{'y' * 39}…"
    assert capsys.readouterr().out == (
        f"Job cafecafe ({program}; started 1:02:03 ago) is being stopped.\nJob "
        "cafecafe has ended with exit code 130. Stopped.\n"
    )


def test_without_waiting_it_is_described_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stop(monkeypatch, "--no-wait")

    assert capsys.readouterr().out.count("is being stopped.\n") == 1


def test_a_job_that_the_command_line_names_needs_no_description(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_stop(monkeypatch, "cafe") == ["cafe"]
    assert capsys.readouterr().out.startswith("Job cafecafe has ended")
