"""What an instance that checks its members knows, and what the others tell it."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from popdist.elastic import reforming
from popdist.errors import ElasticError, MembersChangedError, PeerLostError
from popdist.generations import LOST, Change

JOINS = Change("added", "Instance 2 was started again.")
LEAVES = Change("leaves", "The discovery script no longer prints b.")
COMBINE = {"max": np.maximum, "min": np.minimum}


class Group:
    """A group with one other member, which calls with these flags."""

    def __init__(self, *flags: bool) -> None:
        self._flags = np.array(flags)

    def all_reduce(self, flags: NDArray[Any], operation: str) -> NDArray[Any]:
        assert self._flags.size, "Nothing is to be called."
        return np.array(COMBINE[operation](flags, self._flags))


@pytest.mark.parametrize(
    ("change", "others", "error", "sentence"),
    [
        pytest.param(
            Change(LOST, "Instance 1 has ended."),
            Group(),
            PeerLostError,
            "^Instance 1 has ended.$",
            id="lost",
        ),
        pytest.param(
            JOINS, Group(False, False, True), MembersChangedError, JOINS.why, id="joins"
        ),
        pytest.param(
            LEAVES,
            Group(False, False, True),
            MembersChangedError,
            LEAVES.why,
            id="leaves",
        ),
        pytest.param(
            None,
            Group(True, False, True),
            MembersChangedError,
            "^poprun has told another instance of a change.$",
            id="other-is-told",
        ),
        pytest.param(
            JOINS,
            Group(False, True, False),
            ElasticError,
            "^Another instance of this job cannot re-form",
            id="other-cannot",
        ),
    ],
)
def test_a_change_that_one_member_knows_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    change: Change | None,
    others: Group,
    error: type[Exception],
    sentence: str,
) -> None:
    monkeypatch.setattr(reforming, "refusal", lambda: "")
    monkeypatch.setattr(reforming.GENERATIONS, "none_can", False)
    monkeypatch.setattr(reforming.GENERATIONS, "pending", lambda: change)
    monkeypatch.setattr(reforming.STATE, "group", lambda *_: others)

    with pytest.raises(error, match=sentence):
        reforming.check_members((0, 1))


def test_an_instance_that_joins_asks_poprun_for_the_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Generations:
        current = 0

        def refusal(self, _: object) -> str:
            self.current = 3
            return ""

    monkeypatch.setattr(reforming, "GENERATIONS", Generations())

    assert reforming.generation() == 3
