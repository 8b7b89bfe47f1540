import pytest

from poprun.vipu.commands.views import ipu_names
from poprun.vipu.rules import numbering
from poprun.vipu.rules.numbering import Device


@pytest.mark.parametrize(
    ("first", "num_ipus", "number"),
    [
        (0, 1, 0),
        (63, 1, 63),
        (0, 2, 64),
        (2, 2, 65),
        (62, 2, 95),
        (0, 4, 96),
        (32, 32, 125),
        (0, 64, 126),
    ],
)
def test_devices_of_64_ipus_are_numbered_as_observed(
    first: int, num_ipus: int, number: int
) -> None:
    device = Device(id=number, first=first, num_ipus=num_ipus)

    assert numbering.make_device(64, first, num_ipus) == device


def test_the_whole_of_4_ipus_is_device_6() -> None:
    assert numbering.make_device(4, 0, 4).id == 6
    assert numbering.make_device(1, 0, 1).id == 0


def test_the_device_of_ipus_that_are_no_aligned_power_of_two_is_the_first_ipu() -> None:
    assert numbering.make_device(16, 3, 3) == Device(id=3, first=3, num_ipus=3)


def test_children_are_numbered_in_rank_order() -> None:
    parent = numbering.make_device(64, 8, 8)

    assert numbering.children_of(64, parent, 4, 2) == (
        Device(id=68, first=8, num_ipus=2),
        Device(id=69, first=10, num_ipus=2),
        Device(id=70, first=12, num_ipus=2),
        Device(id=71, first=14, num_ipus=2),
    )


@pytest.mark.parametrize(
    ("taken", "num_ipus", "first"),
    [
        ([], 16, 0),
        ([Device(id=0, first=0, num_ipus=1)], 1, 1),
        ([Device(id=0, first=0, num_ipus=1)], 4, 4),
        ([Device(id=3, first=3, num_ipus=1), Device(id=4, first=4, num_ipus=1)], 2, 0),
        ([Device(id=1, first=1, num_ipus=1), Device(id=4, first=4, num_ipus=1)], 4, 8),
        ([Device(id=1, first=1, num_ipus=1)], 16, -1),
        (
            [Device(id=24, first=0, num_ipus=8), Device(id=25, first=8, num_ipus=8)],
            1,
            -1,
        ),
    ],
)
def test_a_device_is_free_where_all_of_its_ipus_are(
    taken: list[Device], num_ipus: int, first: int
) -> None:
    assert numbering.first_free(16, num_ipus, taken) == first


def test_an_ipu_is_one_of_four_of_its_machine() -> None:
    assert ipu_names((0, 7), {0: "ag0", 1: "ag1"}) == ["ag0:0", "ag1:3"]
