import json
import os
from pathlib import Path

import pytest

from popdist.engine import _core, tuning
from popdist.engine.tuning import Tuning, cores_of_host
from tests.popdist.engine.members import Me, results


@pytest.mark.parametrize("size", [1, 2, 3, 13, 256])
@pytest.mark.parametrize("cores", [1, 2, 300])
def test_what_was_measured_is_possible_for_any_number_of_members(
    size: int, cores: int
) -> None:
    found = Tuning.measured(size, cores)

    nbytes = _core.arena_bytes(
        size, found.block_bytes, found.oneshot_bytes, found.spins
    )
    assert nbytes > 0


def test_members_that_share_cores_do_not_spin() -> None:
    assert Tuning.measured(4, 2).spins == 0
    assert Tuning.measured(2, 2).spins > 0


def test_the_smallest_block_has_room_for_every_members_share() -> None:
    least = Tuning(block_bytes=1)

    assert least.fitted(1).block_bytes == 1 << 16
    assert least.fitted(13).block_bytes == 13 << 15
    for size in (1, 2, 3, 13, 256):
        fitted = least.fitted(size)
        assert _core.arena_bytes(size, fitted.block_bytes, 0, 0) > 0


def test_what_fits_stays_as_it_is() -> None:
    given = Tuning(oneshot_bytes=77, block_bytes=1 << 20, spins=5)

    assert given.fitted(4) == given


def test_an_arena_that_cannot_be_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="with blocks of 1000 bytes and one-shot up"):
        _core.arena_bytes(2, 1000, 0, 0)
    with pytest.raises(ValueError, match="An arena for 257 members"):
        _core.arena_bytes(257, 1 << 30, 0, 0)


def test_the_table_ships_with_both_of_its_entries() -> None:
    path = Path(tuning.__file__).with_name("tuning.json")
    table = json.loads(path.read_text())

    assert [entry["members"] for entry in table["entries"]] == ["fit", "crowded"]


def test_a_host_has_at_least_the_cores_of_this_process() -> None:
    assert cores_of_host() >= len(os.sched_getaffinity(0))


def test_groups_take_what_was_measured_if_they_are_told_nothing() -> None:
    def member(me: Me) -> int:
        return int(me.join(tuning=None).all_reduce(1))

    assert results(3, member) == [3, 3, 3]
