"""How many lines and bytes the members of a large group read from each other."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="module")
def counts() -> dict[str, list[int]]:
    """Return for each call what 24 members count, of which each 6 share a cache."""
    argv = ["scripts/count_lines.py", "--members", "24", "--cache", "6", "--calls", "5"]
    table = subprocess.run(
        [sys.executable, *argv], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[1]: [int(cell) for cell in row[2:]] for row in rows}


def test_members_begin_a_call_with_few_lines(counts: dict[str, list[int]]) -> None:
    # Each of 23 members reports to the one above, and learns from it: the announcement
    # and the counter.
    assert counts["barrier"][0] == 4 * 23
    # One of each of the three other caches reports to member 0.
    assert counts["barrier"][1] == 4 * 3


def test_very_short_arrays_go_the_same_way(counts: dict[str, list[int]]) -> None:
    lines, far_lines, _, read, far_bytes, *_ = counts["all_reduce 8 B"]

    assert (lines, far_lines) == (4 * 23, 4 * 3)
    # Each element is read by the members above its own, and the sum by 23.
    assert read < 24 * 24 * 8 / 4
    assert far_bytes < read / 2


def test_no_member_waits_for_one_without_a_share(counts: dict[str, list[int]]) -> None:
    # 1024 elements are 16 shares of 64.
    assert counts["all_reduce 4 KiB"][0] == 4 * 23 + 16 * 23
    assert counts["all_reduce 4 KiB"][3] == 2 * 4096 * 23


def test_waits_read_no_line_that_the_awaited_member_writes_in_each_call(
    counts: dict[str, list[int]],
) -> None:
    # A member reads each other one's name once, in whatever call it first waits for it.
    assert all(row[2] < 24 for row in counts.values())
