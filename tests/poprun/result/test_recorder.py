"""The files of --result and --events: refused early, whole at any time."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from plans import make_request, planned

import poprun.result
from poprun.errors import OptionError
from poprun.output.writer import FULL_BYTES
from poprun.plan.topology import Topology
from poprun.result import recorder as module
from poprun.result.instances import InstanceEnd
from poprun.result.recorder import JsonFile, Recorder
from poprun.result.verdict import Verdict
from poprun.wire.events import Exited, Started

SCHEMAS = Path(poprun.result.__file__).parent / "schemas"
TRACEBACK = "Traceback (most recent call last):\nValueError: no"
PLAN = planned(make_request(Topology(num_instances=2, num_replicas=2)))


def validate(name: str, value: Any) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema_rs.validator_for(schema).validate(value)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_job(recorder: Recorder) -> None:
    recorder.begin_attempt(PLAN)
    recorder.listen(Started(rank=0, pid=7))
    recorder.listen(
        Exited(
            rank=0,
            status=3 << 8,
            at_ns=5,
            user_s=0.5,
            system_s=0.25,
            peak_kib=2048,
            by_itself=True,
        )
    )
    stopped = InstanceEnd(rank=1, host="localhost", state="stopped", status=15)
    failed = InstanceEnd(
        rank=0,
        host="localhost",
        state="failed",
        status=768,
        stderr=f"up\n{TRACEBACK}".encode(),
    )
    verdict = Verdict(exit_code=3, first=failed, instances=[stopped, failed])
    recorder.end_attempt("instance_failed", verdict, "Instance 0 failed.")


def test_a_job_is_one_object_and_a_line_for_each_event(tmp_path: Path) -> None:
    result, events = tmp_path / "r", tmp_path / "e"
    recorder = Recorder(["x", "caf\udce9"], result=str(result), events=str(events))
    run_job(recorder)
    recorder.wait_for_restart(2.0)

    assert recorder.finish(3) == []

    [value] = lines(result)
    validate("result", value)
    assert (value["outcome"], value["exit_code"], value["failed_instance"]) == (
        "instance_failed",
        3,
        0,
    )
    assert value["program"] == ["x", "caf\\xe9"]
    stopped, failed = value["attempts"][0]["instances"]
    assert (failed["state"], failed["traceback"], failed["stderr_tail"]) == (
        "failed",
        TRACEBACK,
        f"up\n{TRACEBACK}",
    )
    assert stopped["traceback"] is stopped["stderr_tail"] is None
    told = lines(events)
    for line in told:
        validate("events", line)
    # Of the instance that failed first.
    assert told[-3]["traceback"] == failed["traceback"]
    assert told[-3]["stderr_tail"] == failed["stderr_tail"]
    assert [line["event"] for line in told] == [
        "job_started",
        "attempt_started",
        "instance_started",
        "instance_ended",
        "attempt_ended",
        "restart",
        "job_ended",
    ]


def test_a_job_that_was_refused_has_a_result_too(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorder = Recorder(["x"], result=str(path))

    assert recorder.refuse(2, "No.", ["Write yes."]) == []
    assert recorder.finish(7) == []  # it has been written

    [value] = lines(path)
    validate("result", value)
    assert value["outcome"] == "not_started"
    assert (value["cause"], value["hints"], value["attempts"]) == (
        "No.",
        ["Write yes."],
        [],
    )


def test_a_result_is_incomplete_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("old " * 1000)

    recorder = Recorder(["x"], result=str(path))

    [value] = lines(path)
    validate("result", value)
    assert (value["outcome"], value["exit_code"]) == ("incomplete", None)
    assert value["cause"] == "poprun has not ended yet, or was killed."
    recorder.refuse(2, "")
    [value] = lines(path)
    assert (value["outcome"], value["exit_code"]) == ("not_started", 2)


def test_a_pipe_gets_the_result_alone() -> None:
    read, write = os.pipe()
    recorder = Recorder(["x"], result=f"/dev/fd/{write}")
    recorder.refuse(2, "No.")
    os.close(write)

    with open(read) as file:
        assert json.loads(file.read())["outcome"] == "not_started"


def test_an_error_of_poprun_during_the_job_is_the_launchers(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorder = Recorder(["x"], result=str(path))
    run_job(recorder)
    recorder.refuse(125, "The guard died.")

    assert lines(path)[0]["outcome"] == "launcher_failed"
    assert len(lines(path)[0]["attempts"]) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [("no/such/folder", "No such file"), ("", "Is a directory")],
)
def test_a_file_that_cannot_be_written_is_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(OptionError, match=f"--events .*{reason}.* Name a file"):
        Recorder(["x"], events=str(tmp_path / name))


def test_a_fifo_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OptionError, match="no process is reading it yet"):
        JsonFile("--events", str(tmp_path / "fifo"))


def test_one_file_for_both_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "x")

    with pytest.raises(OptionError, match="both name"):
        Recorder(["x"], result=path, events=path)


def test_a_full_disk_is_a_sentence() -> None:
    file = JsonFile("--events", "/dev/full")
    file.write({"event": "x"})

    assert file.close() == (
        "--events /dev/full is incomplete: it cannot be written: "
        f"{os.strerror(errno.ENOSPC)}."
    )


def test_a_line_that_a_full_disk_has_cut_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e"
    file = JsonFile("--events", str(path))
    file.write({"event": "first"})
    write = os.write

    def fail(descriptor: int, data: Any) -> int:
        if len(data) > 5:
            return write(descriptor, data[:5])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", fail)
    file.write({"event": 2})
    monkeypatch.undo()

    assert "is incomplete" in file.close()
    assert lines(path) == [{"event": "first"}]


def test_the_reader_of_a_pipe_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LAST_READ_S", 0.05)
    reader, writer = os.pipe()
    file = JsonFile("--events", f"/dev/fd/{writer}")
    os.close(writer)
    for _ in range(3 * FULL_BYTES // 1000):
        file.write({"event": "x" * 1000})

    assert file.close().endswith("its reader did not read it.")
    os.close(reader)


def test_stdout_is_not_emptied(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", flush=True)
    recorder = Recorder(["x"], on_stdout=True)
    recorder.refuse(2, "No.")

    first, second = capfd.readouterr().out.splitlines()
    assert first == "before"
    validate("result", json.loads(second))
