"""Ratios are made in each round, and JSON has them all."""

import json
from dataclasses import asdict

import numpy as np

from popdist.bench.results import Spread, microseconds, ratios
from tests.popdist.bench.samples import RESULT

NAMES = ["engine", "gloo", "floor"]
# The second round ran while the machine was ten times as slow.
SECONDS = np.array([[2e-6, 8e-6, 1e-6], [2e-5, 6e-5, 2e-5], [2e-6, 4e-6, 8e-6]])


def test_a_ratio_is_the_median_of_what_each_round_says() -> None:
    found = ratios(NAMES, SECONDS)

    assert found["gloo"] == Spread(median=3.0, lower=2.5, upper=3.5)


def test_the_floor_is_what_the_engine_is_compared_with() -> None:
    found = ratios(NAMES, SECONDS)

    assert found["floor"] == Spread(median=1.0, lower=0.625, upper=1.5)


def test_times_are_medians_in_microseconds() -> None:
    found = microseconds(NAMES, SECONDS)

    assert {name: round(us, 6) for name, us in found.items()} == {
        "engine": 2.0,
        "gloo": 8.0,
        "floor": 8.0,
    }


def test_json_has_times_ratios_and_what_failed() -> None:
    assert json.loads(json.dumps(asdict(RESULT))) == {
        "operation": "all_reduce",
        "dtype": "float32",
        "bytes": 1024,
        "members": 2,
        "algorithm": "oneshot",
        "in_arena": False,
        "blocks": None,
        "reads_result": False,
        "mode": "slow",
        "read_gb_per_s": 2.04,
        "placement": ["0", "1"],
        "rounds": 30,
        "engine_us": 0.5,
        "floor_us": 0.25,
        "peers": {"gloo": 1500.0},
        "ratios": {
            "gloo": {"median": 3000.4, "lower": 99.96, "upper": 3200.0},
            "floor": {"median": 2.0, "lower": 1.995, "upper": 12.34},
        },
        "errors": {"openmpi": "it raised an error"},
        "busy_processes": 2,
        "waits": {"spins": 0.0, "yields": 1.5, "late_yields": 0.25, "sleeps": 3.0},
    }
