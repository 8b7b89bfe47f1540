"""When poprun colours what it writes."""

import os
from collections.abc import Iterator

import pytest

from poprun import cli
from poprun.color import uses_color

TERMINAL = {"TERM": "xterm-256color"}


@pytest.fixture
def terminal() -> Iterator[int]:
    master, slave = os.openpty()
    yield slave
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(
    ("choice", "environ", "on_terminal", "on_pipe"),
    [
        ("auto", TERMINAL, True, False),
        ("auto", {"TERM": "dumb"}, False, False),
        ("auto", {}, False, False),
        ("auto", {**TERMINAL, "NO_COLOR": "1"}, False, False),
        ("auto", {**TERMINAL, "NO_COLOR": ""}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, True, True),
        ("auto", {**TERMINAL, "FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ("always", {"TERM": "dumb", "NO_COLOR": "1"}, True, True),
        ("never", {**TERMINAL, "FORCE_COLOR": "1"}, False, False),
    ],
)
def test_what_decides(
    terminal: int,
    choice: str,
    environ: dict[str, str],
    on_terminal: bool,
    on_pipe: bool,
) -> None:
    pipe = os.pipe()
    try:
        assert uses_color(choice, environ, terminal) == on_terminal
        assert uses_color(choice, environ, pipe[1]) == on_pipe
    finally:
        for end in pipe:
            os.close(end)


def test_a_stream_that_is_closed_has_no_colours() -> None:
    assert uses_color("auto", TERMINAL, 1_000_000) is False


@pytest.mark.parametrize(
    ("words", "environ", "colored"),
    [
        (["--color=always", "--zzz"], {}, True),
        (["--col", "ALWAYS", "--num-replicas=many", "x"], {}, True),
        (["--zzz"], {"POPRUN_COLOR": "always"}, True),
        (["--color=never", "--zzz"], {"POPRUN_COLOR": "always"}, False),
        (["--zzz"], {"FORCE_COLOR": "1"}, True),
        (["--zzz"], {}, False),
        (["--color=pink", "x"], {}, False),
        # It is an argument of the program.
        (["--timeout=x", "ls", "--color=always"], {}, False),
    ],
)
def test_an_error_has_colours_where_they_are_asked_for(
    words: list[str],
    environ: dict[str, str],
    colored: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(words, environ) == 2

    error = "\x1b[1;31merror:\x1b[0m" if colored else "error:"
    assert capsys.readouterr().err.startswith(f"poprun: {error} ")


def test_help_has_colours_and_is_the_same_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli.main(["--help"], {})
    plain = capsys.readouterr().out
    cli.main(["--help", "--color=always"], {})
    colored = capsys.readouterr().out

    assert "\n\x1b[1mTopology:\x1b[0m\n" in colored
    assert "\n  \x1b[36m--num-instances N\x1b[0m  " in colored
    assert "\x1b" not in plain
    for style in ("1", "36", "0"):
        colored = colored.replace(f"\x1b[{style}m", "")
    assert colored == plain


def test_the_short_page_has_colours(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([], {"FORCE_COLOR": "1"}) == 2

    err = capsys.readouterr().err
    assert "\x1b[1mUsage:\x1b[0m poprun [OPTIONS]" in err
    assert "  \x1b[36m-n N\x1b[0m        " in err
