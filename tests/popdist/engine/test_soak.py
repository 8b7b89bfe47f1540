import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from tests.popdist.engine.members import Me, Members, results
from tests.popdist.engine.rounds import Mixer, play, traces


def memory() -> int:
    """Return the bytes that are this process's own, without what it shares."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


@pytest.mark.timeout(600)  # 10 s where nothing else runs
def test_memory_and_files_stay_flat_over_tens_of_thousands_of_calls() -> None:
    def member(me: Me) -> Any:
        mixer = Mixer(me.join(), 7)
        for _ in range(10_000):
            mixer.turn()
        early = memory(), sorted(os.listdir("/proc/self/fd"))
        for _ in range(40_000):
            mixer.turn()
        late = memory(), sorted(os.listdir("/proc/self/fd"))
        return late[0] - early[0], late[1] == early[1]

    for grown, same_files in results(2, member, timeout=280):
        # Room for what malloc keeps: less than a hundred bytes a call are new.
        assert grown < 4_000_000
        assert same_files


def test_many_groups_come_and_go_without_a_trace() -> None:
    def member(me: Me) -> Any:
        def mappings() -> int:
            return Path("/proc/self/maps").read_text().count("memfd:popdist")

        name = me.name
        found = []
        # Another test may have left a group to the process that this one is a fork of.
        inherited = mappings()
        for i in range(110):
            me.name = f"{name}-{i}"
            group = me.join()
            group.all_reduce(group.empty(5000), algorithm="direct")
            group.close()
            del group
            if i in (9, 109):
                new = mappings() - inherited
                found.append((sorted(os.listdir("/proc/self/fd")), new))
        return found

    before = traces()
    for early, late in results(2, member):
        assert early == late
        assert late[1] == 0
    assert traces() == before


def test_traces_include_the_files_mappings_and_processes_of_a_group() -> None:
    before = traces()

    file = os.memfd_create("popdist-arena")
    opened = traces()
    os.ftruncate(file, 4096)
    with mmap.mmap(file, 4096):
        os.close(file)
        mapped = traces()
    with Members(1, lambda me: me.hear()) as members:
        members.tell(0, "go")
        living = traces()
        members.finish()

    # Each of the three sees its own; mmap keeps a descriptor, a member has two.
    assert len(opened[0]) == len(before[0]) + 1
    assert len(mapped[1]) == len(before[1]) + 1
    assert sorted([*before[2], *members.pids]) == living[2]
    assert traces() == before


@pytest.mark.parametrize("seed", range(40))
def test_members_that_are_killed_at_any_moment_are_named(seed: int) -> None:
    found = play(str(seed))

    assert 0 < len(found.victims) < found.size
