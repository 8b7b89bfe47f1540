"""The line that says what poprun does before a job starts."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from itertools import groupby

import pytest

from poprun.output import phase_line, terminal
from poprun.output.phase_line import PhaseLine

# Not by SIGALRM, whose timer the line uses.
pytestmark = pytest.mark.timeout(300, method="thread")

ERASE = "\r\x1b[K"


class Stderr:
    """What the line uses of the module os."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def write(self, descriptor: int, data: bytes) -> None:
        assert descriptor == 2
        self._texts.append(data.decode())


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return what has been written to stderr, while no phase may take long."""
    texts: list[str] = []
    monkeypatch.setattr(terminal, "is_foreground", lambda descriptor: True)
    monkeypatch.setattr(terminal, "own_size", lambda: (24, 40))
    monkeypatch.setattr(phase_line, "write_text", lambda fd, text: texts.append(text))
    monkeypatch.setattr(phase_line, "os", Stderr(texts))
    monkeypatch.setattr(phase_line, "FIRST_AFTER_S", 0.01)
    # The line is drawn once, however long a test takes.
    monkeypatch.setattr(phase_line, "INTERVAL_S", 1000.0)
    yield texts
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def wait_until_drawn(texts: list[str]) -> None:
    deadline = time.monotonic() + 200
    while not texts and time.monotonic() < deadline:
        time.sleep(0.01)


def test_what_takes_long_is_shown_until_it_is_over(written: list[str]) -> None:
    with PhaseLine(is_possible=True) as line:
        line.show("checking the hosts")
        wait_until_drawn(written)
        line.show("checking the hosts")
        line.show("waiting for IPUs")

    # The second phase may last long enough to be drawn again.
    assert [text for text, _ in groupby(t.partition(" (0:")[0] for t in written)] == [
        f"{ERASE}poprun: checking the hosts",
        f"{ERASE}poprun: waiting for IPUs",
        ERASE,
    ]


def test_a_message_appears_above_the_line(written: list[str]) -> None:
    line = PhaseLine(is_possible=True)
    line.show("checking the hosts")
    wait_until_drawn(written)
    line.write("poprun: one\n")
    line.write("poprun: two\n")

    assert written[1:] == [ERASE, "poprun: one\n", "poprun: two\n"]


def test_the_line_is_not_wider_than_the_terminal(written: list[str]) -> None:
    PhaseLine(is_possible=True).show("x" * 100)
    wait_until_drawn(written)

    assert written == [f"{ERASE}poprun: {'x' * 31}"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EAGAIN, errno.ENOSPC])
def test_a_terminal_that_takes_nothing_interrupts_no_phase(
    written: list[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    attempts: list[str] = []

    def refuse(descriptor: int, data: bytes) -> None:
        attempts.append(data.decode())
        raise OSError(code, "no")

    monkeypatch.setattr(phase_line.os, "write", refuse)
    with PhaseLine(is_possible=True) as line:
        line.show("checking the hosts")
        wait_until_drawn(attempts)

    assert attempts[0].startswith(f"{ERASE}poprun: checking the hosts")
    assert attempts[-1] == ERASE


def test_without_a_terminal_nothing_is_drawn_and_no_signal_is_used(
    written: list[str],
) -> None:
    with PhaseLine(is_possible=False) as line:
        line.show("checking the hosts")
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        line.write("poprun: one\n")

    assert written == ["poprun: one\n"]


def test_a_caller_s_own_use_of_the_signal_counts_more(written: list[str]) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    with PhaseLine(is_possible=True) as line:
        line.show("checking the hosts")
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)

    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN


def test_an_alarm_of_the_caller_stays(written: list[str]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 999)
    with PhaseLine(is_possible=True) as line:
        line.show("checking the hosts")

    assert signal.getitimer(signal.ITIMER_REAL)[0] > 9


def test_the_timer_ends_with_the_phases(written: list[str]) -> None:
    line = PhaseLine(is_possible=True)
    line.show("checking the hosts")
    assert signal.getitimer(signal.ITIMER_REAL) != (0, 0)
    line.show("")

    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_what_waits_goes_on_when_the_line_is_drawn(
    written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()

    def draw(descriptor: int, data: bytes) -> None:
        # What is waited for comes only after the line.
        os.write(writer, data)

    monkeypatch.setattr(phase_line.os, "write", draw)
    with PhaseLine(is_possible=True) as line:
        line.show("checking the hosts")
        assert os.read(reader, 100).startswith(f"{ERASE}poprun: checking".encode())
    os.close(reader)
    os.close(writer)
