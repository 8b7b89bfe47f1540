"""Tracebacks are kept together for a moment, and no longer."""

import re

import pytest

from poprun.output.lines.tracebacks import (
    LONGEST_S,
    MARKER,
    Tracebacks,
    first_line,
    without_frames_of,
)

FIRST = MARKER + b"\n"
FRAME = b'  File "train.py", line 3, in <module>\n'


def held(*lines: bytes, now: float = 10.0) -> float:
    """Return for how long a stream is held after the last of these lines."""
    tracebacks = Tracebacks()
    for line in lines:
        tracebacks.see(line, now)
    return round(max(0.0, tracebacks.until - now), 6)


def test_lines_that_are_no_traceback_are_not_held() -> None:
    assert held(b"step 1\n", b"ValueError: this is no traceback\n") == 0.0


def test_a_traceback_is_held_until_its_exception() -> None:
    assert held(FIRST) == 1.0
    assert held(FIRST, FRAME) == 1.0
    assert held(FIRST, FRAME, b"ValueError: nan\n") == 0.05
    assert held(FIRST + FRAME + b"ValueError: nan\n") == 0.05


def test_another_exception_while_it_is_handled_belongs_to_it() -> None:
    chained = b"\nDuring handling of the above exception, another ...:\n\n"

    assert held(FIRST, FRAME, b"KeyError: 1\n", chained, FIRST) == 1.0


def test_torch_s_prefix_is_no_exception() -> None:
    prefix = b"[rank1]: "

    assert held(prefix + FIRST, prefix + FRAME) == 1.0
    assert held(prefix + FIRST, prefix + FRAME, prefix + b"ValueError\n") == 0.05


def test_nothing_is_held_for_longer_than_3_seconds() -> None:
    tracebacks = Tracebacks()
    for tenth in range(50):
        tracebacks.see(FIRST if not tenth else FRAME, 10.0 + tenth / 10)

    assert tracebacks.until == 10.0 + LONGEST_S


def test_the_next_one_has_3_seconds_of_its_own() -> None:
    tracebacks = Tracebacks()
    tracebacks.see(FIRST, 10.0)
    tracebacks.see(FIRST, 20.0)

    assert tracebacks.until == 21.0


def test_the_line_is_found_that_begins_a_traceback() -> None:
    assert first_line(b"one\n[rank1]: " + FIRST + FRAME) == 4
    assert first_line(FIRST) == 0
    assert first_line(b"one\n") == -1


def test_a_syntax_error_of_a_script_is_a_traceback_without_its_first_line() -> None:
    file = b'  File "train.py", line 3\n'

    assert first_line(b"one\n" + file + b"    1 +\n") == 4
    assert first_line(file + FIRST) == 0
    # What faulthandler writes.
    assert first_line(FRAME) == -1
    assert held(file, b"    1 +\n") == 1.0
    assert held(file, b"    1 +\n", b"SyntaxError: invalid syntax\n") == 0.05


USERS = FIRST + FRAME + b"    group.all_reduce(x)\n    ^^^^^^^\n"
CALLED = b'  File "/lib/popdist/calls.py", line 7, in call\n    return method()\n'
RAISED = b'  File "/lib/popdist/checks.py", line 9, in f\n    raise ValueError(\n'
FAILED = b'  File "/lib/popdist/checks.py", line 8, in f\n    1 / 0\n    ~~^~~\n'
CALLBACK = b'  File "train.py", line 8, in f\n    raise KeyError\n'
ERROR = b"ValueError: The reduction is 'median'.\n"


@pytest.mark.parametrize(
    ("traceback", "shown"),
    [
        pytest.param(USERS + CALLED + RAISED + ERROR, USERS + ERROR, id="refusal"),
        pytest.param(USERS + RAISED + ERROR, USERS + ERROR, id="one-frame"),
        pytest.param(
            USERS
            + RAISED
            + ERROR
            + b"\nDuring ...:\n\n"
            + USERS
            + CALLED * 9
            + RAISED
            # The exception without a message.
            + b"E\n",
            USERS + ERROR + b"\nDuring ...:\n\n" + USERS + b"E\n",
            id="chained",
        ),
        *(
            pytest.param(text, text, id=name)
            for name, text in {
                "defect": USERS + CALLED + FAILED + ERROR,
                "callback": USERS + CALLED + CALLBACK + ERROR,
                "cut-off": USERS + CALLED + RAISED,
                "of-popdist-itself": FIRST
                + b'  File "<frozen runpy>", line 1, in run\n'
                + CALLED
                + RAISED
                + ERROR,
                "no-traceback": CALLED + RAISED + ERROR,
            }.items()
        ),
    ],
)
def test_frames_of_a_library_that_refuses_a_call_are_left_out(
    traceback: bytes, shown: bytes
) -> None:
    prefix = b"[rank1]: "
    prefixed = b"".join(prefix + line for line in traceback.splitlines(True))

    assert without_frames_of(b"/lib/popdist", traceback) == shown
    assert without_frames_of(b"/lib/popdist", prefixed) == b"".join(
        prefix + line for line in shown.splitlines(True)
    )
    assert without_frames_of(b"", traceback) == traceback


def test_frames_in_colours_are_left_out_too() -> None:
    def coloured(text: bytes) -> bytes:
        text = re.sub(rb'(".*?")', b"\x1b[35m\\1\x1b[0m", text)
        return text.replace(b"raise", b"\x1b[31mraise\x1b[0m")

    text = coloured(USERS + CALLED + RAISED) + ERROR

    assert without_frames_of(b"/lib/popdist", text) == coloured(USERS) + ERROR
    assert first_line(b'a\n  File \x1b[35m"a.py"\x1b[0m, line \x1b[35m1\x1b[0m\n') == 2
