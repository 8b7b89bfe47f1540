import pytest

from poprun.words import describe_instances, size, three_digits


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1000 << 10, "1000 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (12345 << 10, "12.1 MiB"),
        (512 << 20, "512 MiB"),
        (3 << 30, "3 GiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_a_size_has_a_unit_and_hardly_more_than_three_digits(
    num_bytes: int, text: str
) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.1234, "0.123"), (99.96, "100"), (999.7, "1000"), (12345.6, "12346")],
)
def test_a_number_is_written_without_a_power_of_ten(number: float, text: str) -> None:
    assert three_digits(number) == text


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        ({3}, "instance 3"),
        ({1, 0}, "instances 0 and 1"),
        ({0, 1, 2}, "instances 0 to 2"),
        ({0, 2, 4}, "instances 0, 2 and 4"),
        ({0, 1, 2, 3, 7, 9, 10, 11, 12}, "instances 0 to 3, 7 and 9 to 12"),
    ],
)
def test_instances_are_described_in_runs(instances: set[int], text: str) -> None:
    assert describe_instances(instances) == text
