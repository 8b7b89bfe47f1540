import pytest

from popdist.replicated.returned import ReturnedBatches, ReturnMode


@pytest.mark.parametrize(
    ("mode", "places"),
    [
        (ReturnMode.All, [0, 1, 2, 3, 4, 5]),
        (ReturnMode.EveryN, [None, None, 0, None, None, 1]),
        (ReturnMode.Final, [None, None, None, None, None, 0]),
        (ReturnMode.Sum, [0, 0, 0, 0, 0, 0]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_each_mode_has_places_for_its_micro_batches(
    mode: ReturnMode, places: list[int | None]
) -> None:
    returned = ReturnedBatches(mode, 3, 6)

    assert [returned.place(number) for number in range(6)] == places
