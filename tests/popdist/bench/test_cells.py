"""A peer whose sum is wrong is reported, and not measured."""

import numpy as np
import pytest

from popdist.bench import inputs
from popdist.bench.candidates import Run
from popdist.bench.cells import check
from popdist.bench.measure import Lane
from popdist.bench.meeting import Floats
from tests.popdist.bench.lone import Lone

SOURCE = inputs.source(100, "float32", 0)


class WithAnother(Lone):
    """The other member says the same of everything but finds a wrong sum."""

    def greatest(self, values: Floats) -> Floats:
        return np.maximum(values, 1.0)


ROWS = inputs.rows(100, "float32")


def lane(name: str, run: Run) -> Lane:
    return Lane(name=name, rows=ROWS, run=run)


def spoil(count: int) -> None:
    ROWS[0][count] = 99


def fail(count: int) -> None:
    raise RuntimeError(f"no room for {count}")


def test_the_right_sum_passes() -> None:
    assert check(Lone(), lane("gloo", lambda count: None), SOURCE) == ""


def test_a_wrong_sum_is_reported() -> None:
    assert check(Lone(), lane("gloo", spoil), SOURCE) == (
        "its result is not the sum of what the members brought"
    )


def test_a_wrong_sum_on_another_member_is_reported_on_all() -> None:
    assert check(WithAnother(), lane("gloo", lambda count: None), SOURCE) == (
        "its result is not the sum of what the members brought"
    )


def test_an_error_of_a_peer_is_shown_and_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check(Lone(), lane("gloo", fail), SOURCE) == "it raised an error"
    assert capsys.readouterr().err == "popdist.bench: gloo: no room for 1\n"


def test_an_error_of_the_engine_ends_the_bench() -> None:
    with pytest.raises(RuntimeError, match="no room for 1"):
        check(Lone(), lane("engine", fail), SOURCE)
