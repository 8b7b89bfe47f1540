import pytest

from popdist.replicated.sums import TreeSum, is_one_node


def rows_of(first: int, count: int, *, separate: bool = False) -> TreeSum[str]:
    rows = TreeSum[str](lambda left, right: f"({left}{right})", separate=separate)
    for replica in range(first, first + count):
        rows.push(replica, f"{replica:x}")
    return rows


@pytest.mark.parametrize(
    ("first", "count", "nodes", "total"),
    [
        (0, 1, ["0"], "0"),
        (0, 4, ["((01)(23))"], "((01)(23))"),
        (0, 7, ["((01)(23))", "(45)", "6"], "(((01)(23))((45)6))"),
        (3, 5, ["3", "((45)(67))"], "(3((45)(67)))"),
        (5, 4, ["5", "(67)", "8"], "(5((67)8))"),
    ],
)
def test_rows_are_added_as_aligned_spans_of_replicas(
    first: int, count: int, nodes: list[str], total: str
) -> None:
    rows = rows_of(first, count)

    assert (rows.rows(), rows.total()) == (nodes, total)


def test_a_row_may_be_the_sum_of_several_replicas() -> None:
    rows = rows_of(0, 2)
    rows.push(2, "(23)", level=1)

    assert rows.rows() == ["((01)(23))"]


def test_rows_may_be_kept_apart_and_cleared() -> None:
    rows = rows_of(0, 4, separate=True)
    assert rows.rows() == ["0", "1", "2", "3"]

    rows.clear()
    assert rows.rows() == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([1], True), ([4, 4], True), ([3, 3], False), ([2, 4], False)],
)
def test_equal_powers_of_two_are_one_node_each(
    counts: list[int], expected: bool
) -> None:
    assert is_one_node(counts) is expected
