import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.log import DEBUG, INFO, Log
from poprun.words import printable

LINE = re.compile(r"(\d\d:\d\d:\d\d)\.(\d{3}) (\d+) POPRUN \[([ID])\] (.*)\n")


def said(verbosity: int, *calls: Callable[[Log], None]) -> list[str]:
    lines: list[str] = []
    log = Log(verbosity, lines.append)
    for call in calls:
        call(log)
    return lines


@pytest.fixture
def in_india(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_india")
def test_a_line_has_local_time_in_milliseconds_the_pid_and_the_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 05:39:56.884999 in UTC; what is cut off is not rounded up.
    monkeypatch.setattr(time, "time", lambda: 1_700_026_796.884_999)
    pid = os.getpid()

    assert said(
        DEBUG, lambda log: log.info("Waiting"), lambda log: log.debug("No hosts")
    ) == [
        f"11:09:56.884 {pid} POPRUN [I] Waiting\n",
        f"11:09:56.884 {pid} POPRUN [D] No hosts\n",
    ]


def test_the_time_is_now() -> None:
    before = time.time()
    [line] = said(INFO, lambda log: log.info("x"))
    after = time.time()

    found = LINE.fullmatch(line)
    assert found
    seconds = range(int(before), int(after) + 1)
    clocks = {time.strftime("%H:%M:%S", time.localtime(t)) for t in seconds}
    assert found[1] in clocks


@pytest.mark.parametrize(
    ("verbosity", "levels"), [(0, []), (INFO, ["I"]), (DEBUG, ["I", "D"])]
)
def test_verbosity_decides_which_levels_are_said(
    verbosity: int, levels: list[str]
) -> None:
    lines = said(verbosity, lambda log: log.info("x"), lambda log: log.debug("x"))

    assert [found[4] for line in lines if (found := LINE.fullmatch(line))] == levels


@pytest.mark.parametrize("verbosity", [0, INFO, DEBUG])
def test_warnings_and_errors_are_said_in_any_case_and_are_no_log_lines(
    verbosity: int,
) -> None:
    assert said(
        verbosity,
        lambda log: log.warn("No effect."),
        lambda log: log.say("Stopped."),
        lambda log: log.error("Failed."),
    ) == [
        "poprun: warning: No effect.\n",
        "poprun: Stopped.\n",
        "poprun: error: Failed.\n",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain, até 日本\tx\ny", "plain, até 日本\tx\ny", id="readable"),
        pytest.param("\x1b[2J", "\\x1b[2J", id="escape"),
        pytest.param("\x9b2J", "\\x9b2J", id="escape-in-one-byte"),
        pytest.param("a\rb\x07\x08\x7f\0", "a\\rb\\x07\\x08\\x7f\\x00", id="controls"),
        pytest.param("\u202egpj.exe", "\\u202egpj.exe", id="right-to-left"),
        pytest.param("caf\udce9", "caf\\xe9", id="a-byte-that-is-no-utf-8"),
        pytest.param("\ud800", "\\ud800", id="half-a-character"),
        pytest.param("C:\\n", "C:\\n", id="a-backslash-stays-one"),
    ],
)
def test_what_would_act_on_a_terminal_is_shown_instead(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert said(INFO, lambda log: log.error(text)) == [f"poprun: error: {shown}\n"]
    [line] = said(INFO, lambda log: log.info(text))
    assert line.endswith(f"POPRUN [I] {shown}\n")


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_is_shown_controls_a_terminal(text: str) -> None:
    shown = printable(text)

    shown.encode()
    assert {unicodedata.category(c) for c in shown if c not in "\n\t"}.isdisjoint(
        {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    )


def test_a_quiet_log_has_errors_only_and_what_belongs_to_them() -> None:
    lines: list[str] = []
    quiet = Log(0, lines.append, is_quiet=True)
    for log in (quiet, quiet.held_back(lines)):
        log.warn("One.")
        log.say("Two.")
        log.say("Three.", even_if_quiet=True)
        log.error("Four.")

    assert lines == ["poprun: Three.\n", "poprun: error: Four.\n"] * 2


def test_the_kind_of_a_message_has_a_colour() -> None:
    lines: list[str] = []
    log = Log(0, lines.append, has_color=True)
    log.warn("One.")
    log.error("Two.")
    log.say("Three.")

    assert lines == [
        "poprun: \x1b[1;33mwarning:\x1b[0m One.\n",
        "poprun: \x1b[1;31merror:\x1b[0m Two.\n",
        "poprun: Three.\n",
    ]
