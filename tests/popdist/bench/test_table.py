"""The table has one line a size, and no time without its ratio."""

from dataclasses import replace

import pytest

from popdist.bench import table
from tests.popdist.bench.samples import RESULT


def test_a_line_has_each_peers_time_with_its_ratio_and_quartiles() -> None:
    line = table.line(RESULT, ["gloo"])

    assert " ".join(line.split()) == (
        "1K slow 2.0 oneshot 0.50 us 1.50 ms 3000x (100-3200) 0.25 us 2.00x (2.00-12.3)"
    )


def test_a_peer_that_failed_has_a_word_in_its_column_and_a_sentence() -> None:
    assert "error" in table.line(RESULT, ["gloo", "openmpi"])
    assert table.sentences(RESULT) == [
        "openmpi, all_reduce of 1K of float32: it raised an error."
    ]


def test_lines_end_below_the_end_of_the_heading() -> None:
    heading = table.heading("all_reduce", "float32", 2, ["0", "1"], ["gloo", "openmpi"])

    title, columns = heading.splitlines()
    assert title == "all_reduce of float32, in place; 2 members on CPUs 0 | 1"
    words = " ".join(columns.split())
    assert words == "size mode algorithm engine gloo openmpi floor"
    assert len(columns) == len(table.line(RESULT, ["gloo", "openmpi"]))


def test_one_member_alone_has_no_mode() -> None:
    alone = replace(RESULT, members=1, mode="unknown", read_gb_per_s=None)

    assert "unknown      oneshot" in table.line(alone, ["gloo"])
    assert "; 1 member on CPUs 0" in table.heading(
        "all_reduce", "float32", 1, ["0"], []
    )


def test_only_all_reduce_is_in_place() -> None:
    title, _ = table.heading("all_gather", "int32", 2, ["0", "1"], []).splitlines()
    assert title == "all_gather of int32; 2 members on CPUs 0 | 1"


def test_the_sizes_whose_results_are_read_are_named() -> None:
    small = replace(RESULT, bytes=1 << 19)
    large = replace(RESULT, bytes=1 << 20, reads_result=True)

    assert table.reading([small]) == ""
    assert table.reading([small, large]) == (
        "From 1M on, times include one read of the result."
    )


def test_blocks_that_were_chosen_are_named_by_size() -> None:
    small = replace(RESULT, bytes=1 << 20, blocks=(1 << 19, False))
    large = replace(RESULT, bytes=1 << 26, blocks=(1 << 20, True))

    assert table.blocks([RESULT]) == ""
    assert table.blocks([RESULT, small, large]) == (
        "Blocks of direct, by size: 1M 512K, 64M 1M past caches."
    )


def test_the_legend_says_to_compare_ratios() -> None:
    assert "ratios, not times of different lines" in table.LEGEND


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.2349, "0.23 us"), (9.996, "10.0 us"), (99.96, "100 us"), (28_700.0, "28.7 ms")],
)
def test_times_have_three_digits(us: float, text: str) -> None:
    assert table.time(us) == text
