"""The mode of core-to-core traffic, and where members run."""

import numpy as np
import pytest

from popdist.bench import communicator, machine_state


@pytest.mark.parametrize(
    ("gb_per_s", "name"),
    [(2.0, "slow"), (3.9, "slow"), (4.0, "fast"), (8.0, "fast"), (None, "unknown")],
)
def test_the_mode_follows_from_how_fast_another_core_is_read(
    gb_per_s: float | None, name: str
) -> None:
    assert machine_state.mode(gb_per_s) == name


def test_the_bandwidth_is_that_of_the_median_reading() -> None:
    assert machine_state.bandwidth(
        np.array([1.0, 262_144e-9 / 2, 1e-9])
    ) == pytest.approx(2.0)


def test_nothing_is_read_where_a_member_is_alone() -> None:
    assert machine_state.bandwidth(np.zeros(5)) is None


@pytest.mark.parametrize(
    ("placement", "reader"),
    [
        (["0"], 0),
        (["0", "1"], 1),
        (["0", "0", "1", "1"], 2),
        (["0-1", "0-1", "0-1"], 1),
    ],
)
def test_the_reader_is_on_another_core_than_the_writer(
    placement: list[str], reader: int
) -> None:
    assert machine_state.reader(placement) == reader


@pytest.mark.parametrize(
    ("cpus", "text"),
    [([0], "0"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0,2-3,7"), ([10, 11], "10-11")],
)
def test_cpus_are_written_as_ranges(cpus: list[int], text: str) -> None:
    assert communicator.in_ranges(cpus) == text
