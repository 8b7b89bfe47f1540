"""A picture has one line a candidate; without matplotlib it is refused in words."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from popdist.bench import plot
from tests.popdist.bench.samples import RESULT

LARGER = replace(RESULT, bytes=4096, engine_us=1.0, peers={})


def test_each_candidate_has_a_line_over_the_sizes_that_it_was_measured_at() -> None:
    assert plot.lines([RESULT, LARGER]) == {
        "engine": [(1024, 0.5), (4096, 1.0)],
        "gloo": [(1024, 1500.0)],
        "floor": [(1024, 0.25), (4096, 0.25)],
    }


def test_the_figure_has_a_field_a_dtype_with_a_line_and_a_word_a_candidate() -> None:
    half = replace(RESULT, dtype="float16", peers={})

    fields = plot.figure([RESULT, LARGER, half]).axes

    assert [field.get_title() for field in fields] == [
        "all_reduce, float32, 2 members",
        "all_reduce, float16, 2 members",
    ]
    assert [
        {line.get_label(): line.get_xydata().tolist() for line in field.lines}
        for field in fields
    ] == [
        {
            "engine": [[1024, 0.5], [4096, 1.0]],
            "gloo": [[1024, 1500.0]],
            "floor": [[1024, 0.25], [4096, 0.25]],
        },
        {"engine": [[1024, 0.5]], "floor": [[1024, 0.25]]},
    ]
    assert {(field.get_xscale(), field.get_yscale()) for field in fields} == {
        ("log", "log")
    }
    legends = [field.get_legend().get_texts() for field in fields]
    assert [[text.get_text() for text in texts] for texts in legends] == [
        ["engine", "gloo", "floor"],
        ["engine", "floor"],
    ]


def test_the_file_is_a_png_with_the_colour_of_each_line(tmp_path: Path) -> None:
    path = tmp_path / "found.png"
    gloo = replace(LARGER, peers={"gloo": 3000.0})

    plot.draw([RESULT, gloo], path)

    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    image = imread(path)[..., :3]
    # matplotlib's colours of the first three lines, but for the rounding of a file.
    away = [np.abs(image - to_rgb(f"C{i}")).max(axis=-1).min() for i in range(3)]
    assert max(away) < 0.01


def test_without_matplotlib_the_way_to_get_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(SystemExit) as refusal:
        plot.figure_module()

    assert str(refusal.value).startswith(
        "popdist.bench: A picture needs matplotlib, which cannot be imported ("
    )
    assert str(refusal.value).endswith(
        "Install it with 'pip install matplotlib', or leave out --plot."
    )
