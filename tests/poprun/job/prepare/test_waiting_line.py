"""What is shown while a job waits for IPUs."""

import os
import re

import pytest

from poprun.job.prepare import waiting_line
from poprun.log import Log
from poprun.stdio import terminal


def test_elsewhere_than_on_a_terminal_each_change_is_a_line() -> None:
    texts: list[str] = []
    line = waiting_line.WaitingLine({}, Log(0, texts.append))

    for reason in ("a holds them.", "a holds them.", "b holds them."):
        line.show(reason)

    assert texts == [
        "poprun: waiting for IPUs: a holds them.\n",
        "poprun: waiting for IPUs: b holds them.\n",
    ]


def test_on_a_terminal_a_line_with_the_time_is_drawn_below_what_the_job_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    monkeypatch.setattr(terminal, "has_status_line", lambda environ: True)
    monkeypatch.setattr(terminal, "is_foreground", lambda descriptor: True)
    monkeypatch.setattr(
        waiting_line, "write_text", lambda descriptor, text: written.append(text)
    )
    monkeypatch.setattr(
        os, "write", lambda descriptor, data: written.append(data.decode())
    )
    line = waiting_line.WaitingLine({}, Log(0, written.append))

    line.show("a job of bob holds all of them.")
    line.show("a job of bob holds all of them.")
    line.show("a job of eve holds all of them.")
    waiting_line.erase()
    waiting_line.erase()

    drawn, erased = "\r\x1b[Kpoprun: waiting for IPUs (0:00)", "\r\x1b[K"
    assert re.sub(r"0:\d\d", "0:00", "|".join(written)).split("|") == [
        "poprun: waiting for IPUs: a job of bob holds all of them.\n",
        drawn,
        drawn,
        erased,
        "poprun: waiting for IPUs: a job of eve holds all of them.\n",
        drawn,
        erased,
    ]
