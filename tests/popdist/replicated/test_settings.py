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
