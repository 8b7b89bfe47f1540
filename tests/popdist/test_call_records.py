"""What a job's processes record, as the C core writes it and others read it."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import wait_for

from popdist import call_records as records
from popdist.engine.shm.arena import FILE_NAME
from popdist.engine.spec import dtypes, operations
from popdist.errors import SettingError
from popdist.recorder import ProcessRecorder
from poprun.trace.record_files import Call, ProcessRecords, read_process
from tests.popdist.engine.members import Me, Members, errors, group_of, waits_in

ONES = np.ones(10, np.float32)


def recorded(folder: Path, rank: int, pid: int) -> ProcessRecords:
    stem = folder / f"{rank}-{pid}"
    calls = stem.with_name(stem.name + records.CALLS_SUFFIX).read_bytes()
    notes = stem.with_name(stem.name + records.NOTES_SUFFIX).read_bytes()
    found = read_process(calls, notes)
    assert found is not None
    return found


def described(calls: Sequence[Call]) -> list[tuple[Any, ...]]:
    return [(c.number, c.operation, c.nbytes, c.algorithm, c.status) for c in calls]


def test_numbers_stand_for_the_same_here_and_in_the_engine() -> None:
    assert tuple(o.public_name for o in operations.Operation) == records.OPERATIONS
    assert dict(enumerate(records.DTYPES)) == {v: k for k, v in dtypes.DTYPES.items()}
    assert [dtypes.item_bytes_of(code) for code in range(len(records.DTYPES))] == list(
        records.ITEM_BYTES
    )
    assert list(records.REDUCTIONS) == list(dtypes.REDUCTIONS)
    assert list(records.ALGORITHMS) == list(operations.ALGORITHMS)
    assert f"/memfd:{FILE_NAME} (deleted)" == records.ARENA_LINK


def test_each_call_is_recorded_with_its_times_and_waits(tmp_path: Path) -> None:
    def member(me: Me) -> None:
        group = me.join()
        group.barrier()
        recorder = ProcessRecorder(os.fspath(tmp_path), me.rank)
        recorder.add_group(group.transport, "tests", group.transport.instances)
        if me.rank:
            me.hear()
        group.all_reduce(ONES, "max", out=ONES.copy())
        group.all_reduce(ONES, algorithm="direct")
        group.broadcast(ONES.copy(), 1, async_op=True).wait()
        if me.rank:
            group.send(ONES, 0)
        else:
            group.recv(ONES.copy(), 1)
        recorder.close([(7, "a")])
        group.barrier()

    with Members(2, member) as members:
        members.tell(1, "go")
        assert errors(members.finish()) == [None, None]
        pids = members.pids

    first, second = (recorded(tmp_path, rank, pid) for rank, pid in enumerate(pids))
    expected = [
        (2, "all_reduce", 40, "oneshot", records.DONE),
        (3, "all_reduce", 40, "direct", records.DONE),
    ]
    for own, point in ((first, "recv"), (second, "send")):
        assert described(own.calls[:2]) == expected
        assert own.calls[0].reduction == "max"
        assert [c.operation for c in own.calls[2:]][-1] == point
        assert "broadcast" in {c.operation for c in own.calls}
        assert own.names == {7: "a"}
        assert own.groups[0].members == (0, 1)
        times = [t for c in own.calls for t in (c.began_ns, c.ended_ns)]
        assert times == sorted(times)
        assert all(0 <= c.waited_ns <= c.ended_ns - c.began_ns for c in own.calls)
    assert first.groups[0].identity == second.groups[0].identity


def test_what_a_process_was_in_when_it_was_killed_is_recorded(tmp_path: Path) -> None:
    def member(me: Me) -> None:
        group = me.join()
        recorder = ProcessRecorder(os.fspath(tmp_path), me.rank)
        recorder.add_group(group.transport, "tests", group.transport.instances)
        with_end = recorder.begin_span("whole")
        recorder.end_span(with_end)
        recorder.begin_span("step")
        group.barrier()
        if me.rank:
            me.hear()
        else:
            group.all_reduce(ONES)

    with Members(2, member) as members:
        wait_for(lambda: waits_in(members.pids[0], 2), "the second call")
        members.signal(0, signal.SIGKILL)
        members.signal(1, signal.SIGKILL)
        members.finish()
        found = recorded(tmp_path, 0, members.pids[0])

    assert described(found.calls) == [
        (1, "barrier", 0, "", records.DONE),
        (2, "all_reduce", 40, "oneshot", records.IN_PROGRESS),
    ]
    assert found.calls[1].ended_ns == 0
    assert [(s.name, s.ended_ns > 0) for s in found.spans] == [
        ("whole", True),
        ("step", False),
    ]


def test_calls_beyond_the_room_of_a_file_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_RECORDS", 20000)
    group = group_of("alone", 0, 1)
    recorder = ProcessRecorder(os.fspath(tmp_path), 0)
    recorder.add_group(group.transport, "tests", group.transport.instances)
    for _ in range(20005):
        group.barrier()
    recorder.close([])
    group.close()

    found = recorded(tmp_path, 0, os.getpid())
    # One place is the header's.
    assert (len(found.calls), found.lost) == (19999, 6)
    assert found.calls[-1].number == 19999


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as refusal:
        ProcessRecorder(f"{tmp_path}/none", 0)

    assert str(refusal.value) == (
        f"POPDIST_TRACE is '{tmp_path}/none', but must be a folder in which files can "
        "be made (No such file or directory). Correct it, or unset it."
    )
