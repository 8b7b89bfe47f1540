import pytest

from poprun.record import Record, replace


class Point(Record):
    x: int
    y: int = 0
    name: str = "origin"


class Sorted(Record):
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if list(self.numbers) != sorted(self.numbers):
            raise ValueError("They are not sorted.")


def test_fields_are_given_by_position_or_by_name_or_have_a_default() -> None:
    point = Point(1, name="a")

    assert (point.x, point.y, point.name) == (1, 0, "a")
    assert repr(point) == "Point(x=1, y=0, name='a')"


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        pytest.param((), {}, id="one-is-missing"),
        pytest.param((1, 2, "a", 4), {}, id="too-many"),
        pytest.param((1,), {"z": 3}, id="an-unknown-one"),
        pytest.param((), {"y": 3, "z": 3}, id="an-unknown-one-for-a-missing-one"),
    ],
)
def test_other_fields_are_refused(
    contents: tuple[object, ...], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError) as refusal:
        Point(*contents, **named)  # type: ignore[arg-type]

    assert str(refusal.value) == "Point has the fields ('x', 'y', 'name')."


def test_records_compare_and_hash_as_their_contents() -> None:
    assert Point(1) == Point(y=0, x=1)
    assert hash(Point(1)) == hash(Point(y=0, x=1))
    assert Point(1) != Point(2)
    assert Point(1) != (1, 0, "origin")


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="Point cannot be changed"):
        Point(1).x = 2  # type: ignore[misc]


def test_a_replaced_record_is_another_one_and_is_checked() -> None:
    record = Sorted((1, 2))

    assert replace(record, numbers=(3,)) == Sorted((3,))
    assert record.numbers == (1, 2)
    with pytest.raises(ValueError, match="not sorted"):
        replace(record, numbers=(2, 1))


def test_fields_are_matched_by_their_position() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
