"""popctl trace: where it reads and writes, and what it refuses."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from poprun.popctl.entry_point import main
from tests.poprun.trace.samples import document


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document()))
    return path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "its JSON is not an object"),
        ("3", "its JSON is not an object"),
        ("x", "it is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("[" * 100_000, "its JSON is nested too deeply"),
    ],
)
def test_another_file_is_refused_in_one_sentence(
    trace: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    trace.write_text(text)

    assert main(["trace", "t.json"]) == 2
    assert capsys.readouterr().err == (
        f"popctl: error: 't.json' is not a trace of poprun: {why}. Give a file "
        "that poprun --trace has written.\n"
    )


def test_a_dash_is_stdin_and_stdout(trace: Path) -> None:
    program = "from poprun.popctl.entry_point import main; main()"
    with trace.open("rb") as file:
        ran = subprocess.run(
            [sys.executable, "-c", program, "trace", "-", "--html", "-"],
            stdin=file,
            stdout=subprocess.PIPE,
            text=True,
            timeout=200,
            check=True,
        )

    assert ran.stdout.startswith("<!DOCTYPE html>")
    assert "<title>Trace of poprun: stdin</title>" in ran.stdout
    assert [path.name for path in trace.parent.iterdir()] == ["t.json"]


def test_a_page_that_cannot_be_written_leaves_what_was_there(trace: Path) -> None:
    page = trace.with_name("p.html")
    page.write_text("older")
    program = "import sys; from poprun.popctl.entry_point import main; sys.exit(main())"

    ran = subprocess.run(
        [sys.executable, "-c", program, "trace", "t.json", "--html", "p.html"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
        check=False,
    )

    assert ran.returncode == 2
    assert ran.stderr == (
        "popctl: error: --html 'p.html' cannot be written: File too large.\n"
    )
    assert page.read_text() == "older"
    assert sorted(path.name for path in trace.parent.iterdir()) == ["p.html", "t.json"]
