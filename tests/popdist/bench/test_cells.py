"""A cell has the times of the peers with right results, and the others' errors."""

from collections.abc import Sequence

import numpy as np
import pytest

from popdist.bench.cells import Bench, check
from popdist.bench.communicator import Floats
from popdist.bench.machine_state import Probe
from popdist.bench.rounds import Lane
from popdist.bench.runners import Engine, Run
from popdist.bench.tasks import OPERATIONS, Task, make_task
from tests.popdist.bench.lone_member import LoneMember
from tests.popdist.engine.members import group_of

TASK = make_task("all_reduce", 400, "float32", 0, 1)


class WithAnother(LoneMember):
    """The other member says the same of everything but finds a wrong sum."""

    def greatest(self, values: Floats) -> Floats:
        return np.maximum(values, 1.0)


def lane(name: str, run: Run) -> Lane:
    return Lane(name=name, task=TASK, run=run)


def spoil(count: int) -> None:
    TASK.inputs[0][count] = 99


def fail(count: int) -> None:
    raise RuntimeError(f"no room for {count}")


def test_the_right_sum_passes() -> None:
    assert check(LoneMember(), lane("gloo", lambda count: None)) == ""


def test_a_wrong_sum_is_reported() -> None:
    assert check(LoneMember(), lane("gloo", spoil)) == (
        "its result does not follow from the members' inputs"
    )


def test_a_wrong_sum_on_another_member_is_reported_on_all() -> None:
    assert check(WithAnother(), lane("gloo", lambda count: None)) == (
        "its result does not follow from the members' inputs"
    )


def test_an_error_of_a_peer_is_shown_and_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check(LoneMember(), lane("gloo", fail)) == "it raised an error"
    assert capsys.readouterr().err == "popdist.bench: gloo: no room for 1\n"


def test_an_error_of_the_engine_ends_the_bench() -> None:
    with pytest.raises(RuntimeError, match="no room for 1"):
        check(LoneMember(), lane("engine", fail))


class Peer:
    """Does to its first row what it is told."""

    library = "a library"

    def __init__(
        self, name: str, run: Run, operations: Sequence[str] = OPERATIONS
    ) -> None:
        self.name = name
        self.operations = operations
        self.run = run

    def runner(self, task: Task) -> Run:
        return self.run


@pytest.mark.parametrize(
    ("in_arena", "algorithm"), [(False, "direct"), (True, "arena")]
)
def test_a_cell_measures_who_is_right_and_names_the_others(
    in_arena: bool, algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    comm = LoneMember()
    bench = Bench(
        comm=comm,
        engine=Engine(group_of("alone", 0, 1), "direct"),
        peers=[Peer("gloo", lambda count: None), Peer("openmpi", fail)],
        probe=Probe(comm, ["0"]),
        placement=["0"],
        seconds=1e-9,
        in_arena=in_arena,
    )

    result = bench.cell("all_reduce", "int32", 400)

    assert (result.operation, result.dtype, result.bytes) == (
        "all_reduce",
        "int32",
        400,
    )
    assert (result.algorithm, result.in_arena) == (algorithm, in_arena)
    assert (list(result.peers), set(result.ratios)) == (["gloo"], {"gloo", "floor"})
    assert result.errors == {"openmpi": "it raised an error"}
    assert min(result.engine_us, result.floor_us) > 0
    assert "no room for 1" in capsys.readouterr().err


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
def test_other_operations_are_measured_too(operation: str) -> None:
    comm = LoneMember()
    bench = Bench(
        comm=comm,
        engine=Engine(group_of("alone", 0, 1)),
        peers=[
            Peer("gloo", lambda count: None),
            Peer("deepspeed", fail, ["all_reduce"]),
        ],
        probe=Probe(comm, ["0"]),
        placement=["0"],
        seconds=1e-9,
        in_arena=False,
        reads=True,
    )

    small, large = (bench.cell(operation, "float32", n) for n in (400, 1 << 20))

    assert (small.operation, small.algorithm) == (operation, "blocks")
    assert (small.reads_result, large.reads_result) == (False, True)
    assert small.engine_us > 0
    # It leaves its result as it was, which was cleared after the engine's call.
    assert small.errors == {
        "gloo": "its result does not follow from the members' inputs"
    }
