import json
import os
from pathlib import Path

import numpy as np
import pytest

from popdist.engine import _core, tuning
from popdist.engine.shm import shm_member
from popdist.engine.tuning import (
    Tuning,
    caches_of_members,
    cores_of_host,
    cores_of_members,
)
from tests.popdist.engine.members import Me, results


@pytest.mark.parametrize("size", [1, 2, 3, 13, 256])
@pytest.mark.parametrize("cores", [1, 2, 300])
def test_the_measured_tuning_is_possible_for_any_number_of_members(
    size: int, cores: int
) -> None:
    found = Tuning.measured(size, cores)

    nbytes, _, _ = _core.arena_sizes(
        size, found.block_bytes, found.oneshot_bytes, found.spin_us
    )
    assert nbytes > 0


def test_members_that_share_cores_do_not_spin() -> None:
    assert Tuning.measured(4, 2).spin_us == 0
    assert Tuning.measured(2, 2).spin_us > 0


def test_the_more_members_the_smaller_is_what_goes_with_an_announcement() -> None:
    two = Tuning.measured(2, 300).oneshot_bytes

    assert Tuning.measured(1, 300).oneshot_bytes == two
    assert Tuning.measured(4, 300).oneshot_bytes == two // 2
    assert Tuning.measured(256, 300).oneshot_bytes == 2048
    # Members that share cores were measured as they are.
    crowded = {Tuning.measured(size, 1).oneshot_bytes for size in (2, 4, 256)}
    assert len(crowded) == 1


def test_a_table_with_less_than_the_least_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"members": "fit", "oneshot_bytes": 512, "block_bytes": 1, "spin_us": 0}
    table = tmp_path / "tuning.json"
    table.write_text(json.dumps({"entries": [entry]}))
    monkeypatch.setattr(tuning, "_TABLE", str(table))

    assert Tuning.measured(2, 4).oneshot_bytes == 512
    assert Tuning.measured(4, 4).oneshot_bytes == 512


def test_blocks_that_are_too_small_become_the_smallest() -> None:
    least = Tuning(block_bytes=1).fitted()

    assert least.block_bytes == 1 << 16
    for size in (1, 2, 3, 13, 256):
        assert _core.arena_sizes(size, least.block_bytes, 0, 0)[0] > 0


@pytest.mark.parametrize(
    ("size", "cores", "block"),
    [
        (2, 300, 1 << 19),
        (16, 300, 1 << 19),
        (64, 300, 1 << 19),
        (65, 300, 516_096),
        (256, 300, 1 << 17),
        (2, 1, 1 << 20),
        (32, 1, 1 << 20),
        (33, 1, 1_015_808),
        (256, 1, 1 << 17),
    ],
)
def test_the_slots_of_all_members_stay_within_256_mib(
    size: int, cores: int, block: int
) -> None:
    assert Tuning.measured(size, cores).block_bytes == block


def test_a_possible_tuning_stays_as_it_is() -> None:
    given = Tuning(oneshot_bytes=77, block_bytes=1 << 20, spin_us=5)

    assert given.fitted() == given


def test_an_arena_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="with blocks of 1000 bytes and one-shot up"):
        _core.arena_sizes(2, 1000, 0, 0)
    with pytest.raises(ValueError, match="An arena for 257 members"):
        _core.arena_sizes(257, 1 << 30, 0, 0)


def test_the_table_ships_with_both_of_its_entries() -> None:
    path = Path(tuning.__file__).with_name("tuning.json")
    table = json.loads(path.read_text())

    assert [entry["members"] for entry in table["entries"]] == ["fit", "crowded"]


@pytest.mark.parametrize(
    ("there", "granted", "expected"),
    [(64, None, 64), (64, 2, 2), (2, 64, 2), (None, None, 1)],
)
def test_members_have_the_cores_that_are_there_and_granted(
    there: int | None,
    granted: int | None,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: there)
    monkeypatch.setattr(tuning, "cores_of_cgroups", lambda: granted)

    assert cores_of_host() == expected


def with_cores(
    monkeypatch: pytest.MonkeyPatch, bound: dict[int, set[int] | OSError], host: int = 8
) -> None:
    """Let processes be bound to these cores of a host with so many."""

    def sched_getaffinity(pid: int) -> set[int]:
        cores = bound[pid]
        if isinstance(cores, OSError):
            raise cores
        return cores

    monkeypatch.setattr(os, "sched_getaffinity", sched_getaffinity)
    monkeypatch.setattr(tuning, "cores_of_host", lambda: host)


def test_members_have_the_cores_that_they_are_bound_to_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, refused = ProcessLookupError(), PermissionError()
    with_cores(
        monkeypatch,
        {1: {0}, 2: {0}, 3: {1, 2}, 4: set(range(9)), 5: gone, 6: refused},
    )

    assert cores_of_members([1, 2]) == 1
    assert cores_of_members([1, 2, 3]) == 3
    assert cores_of_members([1, 4]) == 8
    assert cores_of_members([1, 5]) == 1
    assert cores_of_members([5]) == 8
    assert cores_of_members([1, 6]) == 8


def test_members_bound_to_one_core_share_it_whatever_the_host_has() -> None:
    def member(me: Me) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "cpu_count", lambda: 300)
            patch.setattr(tuning, "cores_of_cgroups", lambda: None)
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            group = me.join(tuning=None)
        # So much goes with an announcement only where each member has a core.
        x = np.ones(Tuning.measured(2, 2).oneshot_bytes // 4, np.float32)
        group.all_reduce(x)
        return group.last_algorithm

    assert results(2, member) == ["direct"] * 2


def test_the_cores_of_the_first_member_count_if_members_have_different_ones() -> None:
    def member(me: Me) -> tuple[int, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "cpu_count", lambda: 300)
            patch.setattr(tuning, "cores_of_cgroups", lambda: (2, 1)[me.rank])
            group = me.join(tuning=None)
        # So much goes with an announcement only where each member has a core.
        x = np.ones(Tuning.measured(2, 2).oneshot_bytes // 4, np.float32)
        return int(group.all_reduce(x)[0]), group.last_algorithm

    assert Tuning.measured(2, 1).oneshot_bytes < Tuning.measured(2, 2).oneshot_bytes
    assert results(2, member) == [(2, "oneshot")] * 2


def test_groups_take_what_was_measured_if_they_are_told_nothing() -> None:
    def member(me: Me) -> int:
        return int(me.join(tuning=None).all_reduce(1))

    assert results(3, member) == [3, 3, 3]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_an_entry_measured_with_some_members_gives_as_many_the_same_tuning(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Tuning(oneshot_bytes=8192, block_bytes=1 << 19, spin_us=70)
    table = tmp_path / "tuning.json"
    table.write_text(json.dumps({"entries": [found.entry(size, 8)]}))
    monkeypatch.setattr(tuning, "_TABLE", str(table))

    assert Tuning.measured(size, 8) == found


def test_members_with_cores_of_one_cache_have_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = PermissionError()
    with_cores(
        monkeypatch,
        {1: {8, 9}, 2: {0}, 3: {11}, 4: {1, 2, 3}, 5: {3, 4}, 6: refused},
    )
    monkeypatch.setattr(
        tuning, "cores_of_cache", lambda core: {core & -4 | i for i in range(4)}
    )

    assert caches_of_members([1, 2, 3, 4]) == bytes([0, 1, 0, 1])
    # The cores of two caches.
    assert caches_of_members([1, 2, 5]) == bytes(3)
    assert caches_of_members([1, 6, 2]) == bytes(3)


@pytest.mark.parametrize(("size", "given"), [(16, [0] * 16), (18, [0, 1, 2] * 6)])
def test_members_of_a_large_group_report_within_their_caches(
    size: int, given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    initialise = _core.initialise
    arenas: list[bytes] = []

    def initialise_and_note(
        memory: object, sizes: tuple[int, int, int, int], cache_of: bytes
    ) -> None:
        arenas.append(cache_of)
        initialise(memory, sizes, cache_of)

    monkeypatch.setattr(_core, "initialise", initialise_and_note)
    monkeypatch.setattr(
        shm_member, "caches_of_members", lambda pids: bytes([0, 1, 2] * 6)
    )

    def member(me: Me) -> list[float]:
        group = me.join()
        # Along the hierarchy, and through slots.
        sums = [
            group.all_reduce(np.full(n, me.rank, np.float32))[-1] for n in (3, 3, 3000)
        ]
        assert me.rank > 0 or arenas == [bytes(given)]
        return [float(total) for total in sums]

    assert results(size, member) == [[size * (size - 1) / 2] * 3] * size
