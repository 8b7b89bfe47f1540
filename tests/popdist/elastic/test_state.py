"""The objects of a State, and the copies of them."""

import pytest

from popdist.elastic import Kept, State


def test_an_object_with_two_names_is_one_object_after_a_restore() -> None:
    weights = [1.0]
    state = State(weights=weights, same=weights, nested={"weights": weights})

    state.weights.append(2.0)
    state.restore()

    assert state.weights == [1.0]
    assert state.weights is state.same is state.nested["weights"]


def test_changes_after_a_restore_do_not_change_the_commit() -> None:
    state = State(weights=[1.0])

    for _ in range(2):
        state.weights.append(2.0)
        state.restore()

    assert state.weights == [1.0]


class _Uncopied:
    """An object that can be copied until it is broken."""

    broken = False

    def __deepcopy__(self, memo: object) -> "_Uncopied":
        if self.broken:
            raise ValueError("It is broken.")
        return _Uncopied()


def test_a_commit_that_fails_is_not_the_newest() -> None:
    state = State(step=0, other=_Uncopied())
    state.commit()
    state.step += 1
    state.other.broken = True
    with pytest.raises(ValueError, match="It is broken"):
        state.commit()
    newest = repr(state)

    state.restore()

    assert newest == "<State of step, other: commit 0>"
    assert (state.step, state.other.broken) == (0, False)


def test_names_that_a_state_needs_itself_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^State\(\) got _x, commit, but the names "):
        State(commit=1, _x=2, step=3)


def test_an_object_that_a_state_does_not_have_is_an_error_with_its_names() -> None:
    state = State(step=0)
    sentence = (
        r"^The State has no object 'steps'. The names given to State\(\) are step.$"
    )

    with pytest.raises(AttributeError, match=sentence):
        state.steps += 1
    with pytest.raises(AttributeError, match=sentence):
        state.steps = 1


def test_kinds_of_objects_are_asked_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Numbers(Kept):
        @classmethod
        def accepts(cls, value: object) -> bool:
            return isinstance(value, list)

        def content(self) -> int:
            return sum(self.value)

        def load(self, content: int) -> None:
            self.value[:] = [content]

    monkeypatch.setattr(State, "kinds", [Numbers, *State.kinds])
    numbers = [1, 2]
    state = State(numbers=numbers, other=(1, 2))

    numbers.append(3)
    state.restore()

    assert (numbers, state.numbers is numbers, state.other) == ([3], True, (1, 2))
