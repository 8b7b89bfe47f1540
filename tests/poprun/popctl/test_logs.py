import os
from pathlib import Path

import pytest

from poprun.popctl import logs
from poprun.popctl.logs import begin_of_last


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("text", "lines", "last"),
    [
        ("one\ntwo\nthree\n", 1, "three\n"),
        ("one\ntwo\nthree\n", 2, "two\nthree\n"),
        ("one\ntwo\nthree", 2, "two\nthree"),
        ("one\ntwo\n", 2, "one\ntwo\n"),
        ("one\ntwo\n", 9, "one\ntwo\n"),
        ("one\n\n", 1, "\n"),
        ("\n\n", 2, "\n\n"),
        ("no end", 1, "no end"),
        ("one\n", 0, ""),
        ("", 3, ""),
    ],
)
def test_the_last_lines_begin_where_tail_finds_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    piece: int,
    text: str,
    lines: int,
    last: str,
) -> None:
    monkeypatch.setattr(logs, "PIECE", piece)
    path = tmp_path / "stdout"
    path.write_text(text)
    with open(path, "rb") as file:
        begin = begin_of_last(file.fileno(), os.path.getsize(path), lines)

    assert text[begin:] == last


def test_what_is_written_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PIECE", 4)
    path = tmp_path / "stdout"
    path.write_text("12345678")
    written = b""

    def write(descriptor: int, data: bytes) -> None:
        nonlocal written
        written += data
        with open(path, "ab") as file:
            file.write(b"more")

    monkeypatch.setattr(logs, "write_bytes", write)
    logs._write_file(os.fspath(path), None)

    assert written == f"==> {path} <==\n12345678\n".encode()
