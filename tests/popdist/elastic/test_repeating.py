"""A function is called again after a loss, or ends with an error that names it."""

import pytest

from popdist.elastic import repeating
from popdist.elastic.state import State
from popdist.errors import (
    CollectiveTimeoutError,
    ElasticError,
    GroupUnusableError,
    MembersChangedError,
    PeerLostError,
)


class Alone(State):
    """A State that needs no other member."""

    def sync(self) -> None:
        pass


@pytest.mark.parametrize("kind", [CollectiveTimeoutError, ElasticError])
def test_an_error_of_the_re_forming_tells_the_loss_as_its_cause(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    loss = PeerLostError("Instance 1 has ended.")

    def refuse() -> None:
        raise kind("No.")

    @repeating.run
    def train(state: State) -> None:
        raise loss

    monkeypatch.setattr(repeating, "refusal", lambda: "")
    monkeypatch.setattr(repeating, "reform", refuse)

    with pytest.raises(kind) as raised:
        train(Alone())
    assert raised.value.__cause__ is loss


@pytest.mark.parametrize(
    ("error", "steps"),
    [(PeerLostError("lost"), [0, 0]), (MembersChangedError(), [0, 1])],
)
def test_only_a_loss_costs_the_steps_since_the_commit(
    monkeypatch: pytest.MonkeyPatch, error: Exception, steps: list[int]
) -> None:
    begun = list[int]()

    @repeating.run
    def train(state: State) -> str:
        begun.append(state.step)
        if len(begun) == 1:
            state.step += 1
            raise error
        return "done"

    monkeypatch.setattr(repeating, "refusal", lambda: "")
    monkeypatch.setattr(repeating, "reform", lambda: None)

    assert (train(Alone(step=0)), begun) == ("done", steps)


def test_a_loss_in_a_job_that_cannot_re_form_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @repeating.run
    def train(state: State) -> None:
        raise PeerLostError("Instance 1 has ended.")

    monkeypatch.setattr(repeating, "refusal", lambda: "MPI has started it.")

    with pytest.raises(PeerLostError) as raised:
        train(Alone())
    assert raised.value.__notes__ == ["MPI has started it."]


@pytest.mark.parametrize(
    ("cause", "counts"),
    [
        (PeerLostError("lost"), True),
        (GroupUnusableError("failed before", [1]), True),
        (GroupUnusableError("closed"), False),
        (ValueError("wrong"), False),
    ],
)
def test_causes_at_any_depth_tell_of_a_loss(cause: Exception, counts: bool) -> None:
    error, middle = RuntimeError("outer"), RuntimeError("middle")
    error.__cause__, middle.__cause__ = middle, cause

    assert (repeating.is_loss(cause), repeating.is_loss(error)) == (counts, counts)
