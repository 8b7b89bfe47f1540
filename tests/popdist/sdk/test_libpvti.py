import json
from collections import UserList
from pathlib import Path

import pytest

from popdist import sdk
from popdist.call_records import BEGIN, NOTES_SUFFIX
from popdist.recorder import ProcessRecorder
from popdist.session import STATE

sdk.install()

import libpvti as pvti  # noqa: E402


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pvti.TraceChannel:
    monkeypatch.setattr(STATE, "recorder", ProcessRecorder(str(tmp_path), 0))
    return pvti.createTraceChannel("train")


def recorded(folder: Path) -> tuple[list[str], int]:
    """Return the names of the spans, and how many of them have ended."""
    (path,) = folder.glob(f"*{NOTES_SUFFIX}")
    notes = [json.loads(line) for line in path.read_text().splitlines()]
    names = [note["name"] for note in notes if note["kind"] == BEGIN]
    numbers = [note["span"] for note in notes if "span" in note]
    return names, len(numbers) - len(set(numbers))


def test_trace_points_are_spans(tmp_path: Path, channel: pvti.TraceChannel) -> None:
    with pvti.Tracepoint(channel, "epoch 1"):
        pvti.Tracepoint.event(channel, "checkpoint")
        pvti.Tracepoint.begin(channel, "outer")
        pvti.Tracepoint.begin(channel, "outer")
        pvti.Tracepoint.end(channel, "outer")
        assert recorded(tmp_path)[1] == 2
        pvti.Tracepoint.end(channel, "outer")

    names = ["epoch 1", "checkpoint", "outer", "outer"]
    assert recorded(tmp_path) == ([f"train: {name}" for name in names], 4)
    with pytest.raises(
        ValueError, match=r"No trace point 'outer' of the channel 'train' is open in th"
    ):
        pvti.Tracepoint.end(channel, "outer")


def test_functions_and_methods_are_instrumented(
    tmp_path: Path, channel: pvti.TraceChannel
) -> None:
    @pvti.instrument_fn(channel)
    def double(x: int) -> int:
        return 2 * x

    words = UserList(["a"])

    assert double(3) == 6
    assert pvti.instrument(words, ["append"], channel) is words
    words.append("b")

    assert words == ["a", "b"]
    names, ended = recorded(tmp_path)
    assert [name.rpartition(".")[2] for name in names] == ["double", "append"]
    assert ended == 2


def test_graphs_and_heatmaps_take_numbers() -> None:
    series = pvti.Graph("Loss", "").addSeries("training")
    heatmap = pvti.HeatmapDouble("weights", [-1.0, 0.0, 1.0], "2^x")

    series.add(0.5)
    heatmap.add([0.25, -0.5])
    with pytest.raises(ValueError, match="could not convert"):
        series.add("half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="could not convert"):
        heatmap.add(["half"])
