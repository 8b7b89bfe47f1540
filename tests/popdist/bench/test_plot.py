"""A picture has one line a candidate; what is missing to draw it is said in words."""

import sys
from dataclasses import replace

import pytest

from popdist.bench import plot
from popdist.bench.results import Result

RESULT = Result(
    operation="all_reduce",
    dtype="float32",
    bytes=4,
    members=2,
    algorithm="oneshot",
    in_arena=False,
    mode="fast",
    read_gb_per_s=9.0,
    placement=["0", "1"],
    rounds=30,
    engine_us=0.5,
    floor_us=0.25,
    peers={"gloo": 300.0},
    ratios={},
    errors={},
)


def test_each_candidate_has_a_line_over_the_sizes_that_it_was_measured_at() -> None:
    larger = replace(RESULT, bytes=1024, engine_us=1.0, peers={})

    assert plot.lines([RESULT, larger]) == {
        "engine": [(4, 0.5), (1024, 1.0)],
        "gloo": [(4, 300.0)],
        "floor": [(4, 0.25), (1024, 0.25)],
    }


def test_without_matplotlib_the_way_to_get_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(plot.NoPlotError) as refusal:
        plot.figure_module()

    assert str(refusal.value).startswith("A picture needs matplotlib, which cannot be")
    assert str(refusal.value).endswith(
        "Install it with 'pip install poprun[plot]', or leave out --plot."
    )
