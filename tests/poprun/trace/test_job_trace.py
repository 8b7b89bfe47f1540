import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from popdist import call_records as records
from poprun.errors import OptionError
from poprun.host.host_link import HostLink
from poprun.host.record_pieces import record_pieces
from poprun.trace.job_trace import JobTrace
from poprun.wire.events import Exited, MpirunExited, MpirunStarted, Started


def written(path: Path) -> Any:
    document = json.loads(path.read_text())
    return document, document["traceEvents"]


def file_of_calls(count: int, room: int = 100) -> bytes:
    header = records.HEADER.pack(
        records.RECORDS_MAGIC, records.RECORDS_VERSION, 77, count + 1, 3, 0, 0
    )
    now = time.monotonic_ns()
    rows = [
        # All-reduces of float32, summed up by "direct", which have succeeded.
        records.RECORD.pack(now, now + 9, 5, 64, n + 1, 0, 0, -1, 1, 0, 0, 1, 0, 1, 0)
        for n in range(count)
    ]
    return header + b"".join(rows) + bytes(room * records.RECORD.size)


def notes(rank: int, pid: int) -> bytes:
    lines = [
        {
            **{"kind": "process", "rank": rank, "pid": pid, "host": "here"},
            **{"monotonic": 5_000_000, "realtime": 1_000_000_000},
        },
        {"kind": "group", "group": 0, "id": "1", "purpose": "", "members": [0, 1]},
        {"kind": "begin", "span": 0, "at": 5, "thread": 1, "name": "step"},
    ]
    # A disk may be full in the middle of a line.
    return "".join(json.dumps(line) + "\n" for line in lines).encode() + b'{"kind": "e'


def test_there_is_a_valid_file_from_the_start_on(tmp_path: Path) -> None:
    JobTrace(os.fspath(tmp_path / "trace.json"))

    document, _ = written(tmp_path / "trace.json")
    assert document["otherData"]["complete"] == "no: poprun has not come to its end"


def test_the_file_has_phases_lives_and_records(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"{rank}-7{rank}.calls").write_bytes(file_of_calls(4))
        (folder / f"{rank}-7{rank}.notes").write_bytes(notes(rank, 70 + rank))
    (folder / "ended-instances").write_text("0\n")
    trace = JobTrace(os.fspath(tmp_path / "trace.json"))
    trace.enter("prepare")
    trace.enter("run")
    trace.begin_attempt(0, {0: "here", 1: "here"})
    trace.listen(MpirunStarted(pid=9))
    for rank in (0, 1):
        trace.listen(Started(rank=rank, pid=70 + rank))
    at = time.monotonic_ns()
    trace.listen(
        Exited(
            rank=0,
            status=signal.SIGKILL,
            at_ns=at,
            user_s=0.0,
            system_s=0.0,
            peak_kib=0,
            by_itself=True,
        )
    )
    trace.listen(MpirunExited(status=0))
    records = record_pieces(os.fspath(folder))
    host = SimpleNamespace(name="here", call_records=records, clock_readings=())
    trace.collect([cast("HostLink", host)])

    assert trace.write() == ""

    document, events = written(tmp_path / "trace.json")
    assert document["otherData"]["complete"] == "yes"
    phases = [e["name"] for e in events if e.get("cat") == "phase"]
    assert phases == ["prepare", "run", "mpirun"]
    lives = [e["args"]["end"] for e in events if e.get("cat") == "life"]
    assert lives == ["exit code 137", ""]
    calls = [e for e in events if e.get("cat") == "call"]
    assert [e["pid"] for e in calls].count(1) == 4
    assert len(calls) == 8
    assert [e["name"] for e in events if e.get("cat") == "span"] == ["step", "step"]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".new")]


def test_calls_without_room_are_told(tmp_path: Path) -> None:
    trace = JobTrace(os.fspath(tmp_path / "trace.json"))
    assert trace.missing_calls() == ""
    for rank in (0, 1):
        trace.add_piece("here", f"{rank}-7{rank}.calls", file_of_calls(4))
        trace.add_piece("here", f"{rank}-7{rank}.notes", notes(rank, 70 + rank))

    assert trace.missing_calls() == (
        "6 calls are missing from the trace: each process records its first "
        "131071, or fewer if the disk is full. 'popctl trace' names the "
        "processes."
    )


def test_a_process_that_is_not_the_instances_own_has_its_own_row(
    tmp_path: Path,
) -> None:
    trace = JobTrace(os.fspath(tmp_path / "trace.json"))
    trace.begin_attempt(0, {0: "here"})
    trace.listen(Started(rank=0, pid=70))
    for pid in (70, 99):
        trace.add_piece("here", f"0-{pid}.notes", notes(0, pid))
    trace.write()

    _, events = written(tmp_path / "trace.json")
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == [
        "instance 0 (PID 70 on here)",
        "instance 0 (PID 99 on here)",
        "poprun",
    ]
    assert len(names) == 3


def test_what_torchs_profiler_has_seen_is_in_the_row_of_its_process(
    tmp_path: Path,
) -> None:
    seen = {"ph": "X", "name": "aten::dot", "cat": "cpu_op", "pid": 70, "tid": 4}
    profile = {
        "baseTimeNanoseconds": 900_000_000,
        "traceEvents": [
            {**seen, "ts": 100_001.5, "dur": 7.0},
            {"ph": "M", "name": "process_name"},
        ],
    }
    trace = JobTrace(os.fspath(tmp_path / "trace.json"))
    trace.add_piece("here", "0-70.notes", notes(0, 70))
    trace.add_piece("here", "0-70.0.profile", json.dumps(profile).encode())
    trace.add_piece("here", "0-70.1.profile", b'{"traceEvents": [{"ph": "X"')
    trace.write()

    _, events = written(tmp_path / "trace.json")
    [event] = [e for e in events if e["name"] == "aten::dot"]
    [step] = [e for e in events if e["name"] == "step"]
    # The span began at 5 ns, and this at 5 ms and 1500 ns.
    assert round(event["ts"] - step["ts"], 3) == 5001.495
    assert (event["pid"], event["dur"]) == (step["pid"], 7.0)
    lines = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert "torch.profiler: thread 4" in lines


@pytest.mark.parametrize("text", [b"", b"\0" * 200, b"x" * 64])
def test_files_that_are_no_records_are_left_out(tmp_path: Path, text: bytes) -> None:
    trace = JobTrace(os.fspath(tmp_path / "trace.json"))
    trace.add_piece("here", "0-70.calls", text)
    trace.add_piece("here", "0-70.notes", notes(0, 70))
    trace.add_piece("here", "1-71.calls", file_of_calls(2)[:150])
    trace.add_piece("here", "1-71.notes", notes(1, 71))

    assert trace.write() == ""

    _, events = written(tmp_path / "trace.json")
    assert len([e for e in events if e.get("cat") == "call"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"null\n",
        b"[]\n",
        b"{}\n",
        b'{"kind": ["process"]}\n',
        b'{"kind": "process"}\n',
        b'{"kind": "process", "rank": [0], "pid": 70, "monotonic": 0, "realtime": 0}\n',
        b'{"kind": "process", "rank": 0, "pid": 70, "monotonic": 0, "realtime": 0}\n'
        b'{"kind": "begin", "span": 1, "name": "a", "thread": 1, "at": "noon"}\n',
    ],
)
def test_notes_of_another_program_do_not_end_the_trace(
    tmp_path: Path, text: bytes
) -> None:
    trace = JobTrace(os.fspath(tmp_path / "trace.json"))
    trace.add_piece("here", "0-70.notes", text)
    trace.add_piece("here", "1-71.notes", notes(1, 71))

    assert trace.write() == ""

    _, events = written(tmp_path / "trace.json")
    assert "step" in [event["name"] for event in events]


def test_a_call_that_its_program_has_overwritten_is_left_out(tmp_path: Path) -> None:
    calls = bytearray(file_of_calls(2))
    calls[2 * 64 + 57] = 99  # its dtype
    trace = JobTrace(os.fspath(tmp_path / "trace.json"))
    trace.add_piece("here", "0-70.calls", bytes(calls))
    trace.add_piece("here", "0-70.notes", notes(0, 70))

    assert trace.write() == ""

    _, events = written(tmp_path / "trace.json")
    assert len([e for e in events if e.get("cat") == "call"]) == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none/trace.json", "No such file or directory"),
        ("", "it is not a regular file"),
        ("pipe", "it is not a regular file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(
    tmp_path: Path, name: str, why: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = os.path.join(tmp_path, name)

    with pytest.raises(OptionError) as refusal:
        JobTrace(path)

    assert str(refusal.value) == (
        f"--trace {path!r} cannot be written: {why}. Name a file in a directory "
        "where you can create files."
    )


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real.json")

    JobTrace(os.fspath(tmp_path / "link"))

    assert (tmp_path / "link").is_symlink()
    written(tmp_path / "real.json")


def test_a_directory_that_is_gone_at_the_end_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    trace = JobTrace(os.fspath(folder / "trace.json"))
    (folder / "trace.json").unlink()
    folder.rmdir()

    assert trace.write() == (
        f"The trace could not be written to {folder}/trace.json: No such file or "
        "directory."
    )


def test_a_dash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    why = (
        "--trace '-' cannot be written: a timeline cannot be written to stdout. "
        "Name a file"
    )

    with pytest.raises(OptionError, match=f"^{why}"):
        JobTrace("-")

    assert [*tmp_path.iterdir()] == []
