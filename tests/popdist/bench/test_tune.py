"""Choices by measured times, and the table's format."""

import json

import pytest

from popdist.bench import tune
from popdist.bench.tune import border, least, merged
from popdist.engine.tuning import Tuning

SIZES = [128, 256, 512, 1024, 2048]
FIT = {"members": "fit", "oneshot_bytes": 4096, "block_bytes": 524288, "spin_us": 80}
CROWDED = {"members": "crowded", "oneshot_bytes": 0, "block_bytes": 65536, "spin_us": 0}


@pytest.mark.parametrize(
    ("ratios", "found"),
    [
        pytest.param([1.5, 1.2, 1.0, 0.9, 0.8], 512, id="wins-up-to"),
        pytest.param([1.5, 0.9, 1.2, 0.9, 0.8], 512, id="one-size-spoilt-by-noise"),
        pytest.param([1.5, 1.2, 0.9, 0.8, 1.1], 256, id="won-by-noise-far-above"),
        pytest.param([0.9, 0.8, 0.8, 0.8, 0.8], 0, id="never-wins"),
        pytest.param([1.5, 1.5, 1.5, 1.5, 1.5], 2048, id="always-wins"),
    ],
)
def test_oneshot_is_used_as_long_as_it_wins(ratios: list[float], found: int) -> None:
    assert border(SIZES, ratios) == found


def test_the_shortest_time_over_all_sizes_is_chosen() -> None:
    assert least({1: [1.0, 1.0], 2: [0.5, 1.5], 3: [0.9, 0.9]}) == 2


def test_the_least_is_chosen_among_those_that_differ_by_noise_alone() -> None:
    assert least({0: [1.0, 1.0], 100: [0.51, 0.5], 10_000: [0.5, 0.5]}) == 100


def test_an_entry_takes_the_place_of_the_one_for_as_many_members() -> None:
    old = dict(FIT, spin_us=1)

    text = merged(merged(merged("", CROWDED), old), FIT)

    assert json.loads(text) == {"entries": [FIT, CROWDED]}


def test_the_table_has_an_entry_a_line() -> None:
    assert merged("", FIT) == (
        '{\n  "entries": [\n    {"members": "fit", "oneshot_bytes": 4096, '
        '"block_bytes": 524288, "spin_us": 80}\n  ]\n}\n'
    )


@pytest.mark.parametrize(("size", "cores"), [(2, 2), (4, 2)])
def test_the_engines_own_tuning_is_among_the_candidates(size: int, cores: int) -> None:
    shipped = Tuning.measured(size, cores)

    assert shipped.spin_us in tune._SPINS_US
    assert shipped.block_bytes in tune._BLOCKS
    assert shipped.oneshot_bytes in (0, *tune._ONESHOT_SIZES)


def test_members_that_share_cores_may_spin_for_a_moment_or_not_at_all() -> None:
    assert set(tune._SPINS_US) >= {0, 1}
    assert set(tune._BLOCKS) >= {256 << 10, 512 << 10, 1 << 20}
