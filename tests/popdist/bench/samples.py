"""One result as tests of tables, files and pictures take it."""

from popdist.bench.results import Result, Spread

RESULT = Result(
    operation="all_reduce",
    dtype="float32",
    bytes=1024,
    members=2,
    algorithm="oneshot",
    in_arena=False,
    blocks=None,
    reads_result=False,
    mode="slow",
    read_gb_per_s=2.04,
    placement=["0", "1"],
    rounds=30,
    engine_us=0.5,
    floor_us=0.25,
    peers={"gloo": 1500.0},
    ratios={
        "gloo": Spread(median=3000.4, lower=99.96, upper=3200.0),
        "floor": Spread(median=2.0, lower=1.995, upper=12.34),
    },
    errors={"openmpi": "it raised an error"},
    busy_processes=2,
    waits={"spins": 0.0, "yields": 1.5, "late_yields": 0.25, "sleeps": 3.0},
)
