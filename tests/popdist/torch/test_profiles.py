"""Recordings of torch.profiler in the folder of the job's trace."""

import json
import os
from pathlib import Path

import pytest
import torch

import popdist.torch
from popdist.recorder import ProcessRecorder
from popdist.session import STATE

# torch 2.10 warns at each profile.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Warning. Profiler clears events:UserWarning"
)


def test_a_profile_is_added_to_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = ProcessRecorder(os.fspath(tmp_path), 3)
    monkeypatch.setitem(STATE.__dict__, "recorder", recorder)

    for _ in range(2):
        with torch.profiler.profile(on_trace_ready=popdist.torch.add_to_trace):
            torch.ones(3) + 1

    names = sorted(os.listdir(tmp_path))
    stem = f"3-{os.getpid()}"
    assert names == [f"{stem}.0.profile", f"{stem}.1.profile", f"{stem}.notes"]
    events = json.loads((tmp_path / names[0]).read_text())["traceEvents"]
    assert "aten::add" in {event["name"] for event in events}


def test_without_a_trace_a_profile_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STATE.__dict__, "recorder", None)
    with torch.profiler.profile(on_trace_ready=popdist.torch.add_to_trace) as profiler:
        torch.ones(3) + 1

    # torch exports it once.
    profiler.export_chrome_trace(os.fspath(tmp_path / "own.json"))
    assert (tmp_path / "own.json").exists()
