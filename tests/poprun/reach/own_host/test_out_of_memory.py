from dataclasses import replace
from pathlib import Path

import pytest

from poprun.reach.own_host.out_of_memory import (
    MemoryCounters,
    machine_memory,
    read_group,
    read_host,
)

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("limit", "bytes_"), [("268435456\n", 268435456), ("max\n", None), ("", None)]
)
def test_version_2_counts_the_kills_of_our_group(
    tmp_path: Path, limit: str, bytes_: int | None
) -> None:
    put(tmp_path / "job/memory.events", EVENTS.format(2))
    put(tmp_path / "job/memory.max", limit)

    assert read_group("0::/job\n", str(tmp_path)) == MemoryCounters(
        kills=2, limit=bytes_
    )


def test_version_1_counts_them_where_the_memory_controller_is(tmp_path: Path) -> None:
    put(
        tmp_path / "memory/docker/abc/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
    )
    put(tmp_path / "memory/docker/abc/memory.limit_in_bytes", "1048576\n")
    membership = "11:cpu,cpuacct:/docker/abc\n9:memory:/docker/abc\n0::/x:y\n"

    assert read_group(membership, str(tmp_path)) == MemoryCounters(
        kills=5, limit=1048576
    )


def test_version_1_has_a_number_for_no_limit(tmp_path: Path) -> None:
    put(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712\n")

    assert read_group("9:memory:/\n", str(tmp_path)) == MemoryCounters()


def test_a_system_with_both_has_version_2_below_a_name_of_its_own(
    tmp_path: Path,
) -> None:
    put(tmp_path / "unified/job/memory.events", EVENTS.format(1))

    assert read_group("0::/job\n", str(tmp_path)).kills == 1


def test_nothing_is_known_where_there_are_no_cgroups(tmp_path: Path) -> None:
    assert read_group("", str(tmp_path)) == MemoryCounters()
    assert read_group("0::/job\n", str(tmp_path)) == MemoryCounters()


def test_counters_that_are_no_numbers_count_for_nothing(tmp_path: Path) -> None:
    put(tmp_path / "memory.events", "oom_kill many\n")
    put(tmp_path / "memory.max", "²\n")

    assert read_group("0::/\n", str(tmp_path)) == MemoryCounters()


def test_this_process_is_asked_about_if_no_other_is() -> None:
    own = Path("/proc/self/cgroup").read_text()

    assert own
    before = read_group(own, "/sys/fs/cgroup")
    found = read_group()
    # Others of the group may be killed meanwhile.
    assert found == replace(before, kills=found.kills)
    assert found.kills >= before.kills


def test_the_tightest_limit_counts_of_those_that_a_group_is_in(tmp_path: Path) -> None:
    put(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(tmp_path / "memory/job/memory.limit_in_bytes", "1048576\n")
    put(tmp_path / "memory/job/step/memory.limit_in_bytes", "2097152\n")
    put(tmp_path / "memory/job/step/memory.oom_control", "oom_kill 1\n")

    found = read_group("9:memory:/job/step\n", str(tmp_path))

    assert found == MemoryCounters(kills=1, limit=1048576)


def test_a_container_may_see_its_own_group_as_the_uppermost(tmp_path: Path) -> None:
    put(tmp_path / "memory/memory.oom_control", "oom_kill 4\n")
    put(tmp_path / "memory/memory.limit_in_bytes", "1048576\n")

    found = read_group("9:memory:/docker/abc\n", str(tmp_path))

    assert found == MemoryCounters(kills=4, limit=1048576)


def test_without_a_lower_limit_the_memory_of_the_host_is_the_limit() -> None:
    meminfo = Path("/proc/meminfo").read_text()
    total = machine_memory(meminfo)
    assert total is not None

    before = read_group()

    found = read_host()

    # Others of the group may be killed meanwhile.
    assert before.kills <= found.kills <= read_group().kills
    assert found.limit == (before.limit or total)


def test_the_kills_of_the_whole_machine_are_those_that_the_kernel_counts() -> None:
    counters = dict(
        line.split() for line in Path("/proc/vmstat").read_text().splitlines()
    )
    before = counters.get("oom_kill")

    found = read_host().host_kills

    # Others may be killed meanwhile.
    assert (found is None) == (before is None)
    assert before is None or found is None or found >= int(before)


@pytest.mark.parametrize(
    ("meminfo", "bytes_"),
    [
        ("MemTotal:        4194304 kB\nMemFree:  1 kB\n", 4 << 30),
        ("MemFree:  1 kB\n", None),
        ("", None),
    ],
)
def test_the_memory_of_a_machine_is_what_its_kernel_reports(
    meminfo: str, bytes_: int | None
) -> None:
    assert machine_memory(meminfo) == bytes_
