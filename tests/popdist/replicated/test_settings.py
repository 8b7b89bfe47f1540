import pytest

from popdist.replicated.settings import ReplicatedSettings


@pytest.mark.parametrize(
    ("consecutive", "expected"), [(True, [8, 8, 9, 9]), (False, [8, 9, 8, 9])]
)
def test_each_replica_gets_the_micro_batch_of_its_input_group(
    consecutive: bool, expected: list[int]
) -> None:
    settings = ReplicatedSettings(
        device_iterations=2,
        gradient_accumulation=3,
        replicas=4,
        input_group_size=2,
        consecutive_groups=consecutive,
    )

    assert settings.micro_batches == 12
    assert [settings.micro_batch_index(1, 1, r) for r in range(4)] == expected


@pytest.mark.parametrize(
    ("mode", "places"),
    [
        ("All", [0, 1, 2, 3, 4, 5]),
        ("EveryN", [None, None, 0, None, None, 1]),
        ("Final", [None, None, None, None, None, 0]),
        ("Sum", [0, 0, 0, 0, 0, 0]),
    ],
)
def test_each_mode_has_places_for_its_micro_batches(
    mode: str, places: list[int | None]
) -> None:
    settings = ReplicatedSettings(device_iterations=3, gradient_accumulation=2)

    found = [settings.returned_place(mode, 3, i, s) for i in range(3) for s in (0, 1)]

    assert found == places
