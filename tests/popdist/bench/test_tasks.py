"""Tasks: the arrays of an operation, and which results are right."""

import numpy as np
import pytest

from popdist.bench.tasks import make_task, read


def test_a_size_is_rounded_up_to_elements_that_members_share() -> None:
    assert make_task("all_reduce", 5, "float32", 0, 3).nbytes == 8
    assert make_task("all_gather", 5, "float32", 0, 3).nbytes == 12
    assert make_task("reduce_scatter", 1000, "float16", 0, 3).nbytes == 1002


def test_all_reduce_is_in_place() -> None:
    task = make_task("all_reduce", 8, "int32", 1, 3)

    # Member r contributes (r + i) % 13.
    assert task.source.tolist() == [1, 2]
    assert task.results[0] is task.inputs[0]
    assert task.is_right(np.array([3, 6], np.int32))
    assert not task.is_right(np.array([3, 7], np.int32))


def test_reduce_scatter_gives_a_member_its_part_of_the_sum() -> None:
    task = make_task("reduce_scatter", 24, "int32", 1, 3)

    assert task.source.tolist() == [1, 2, 3, 4, 5, 6]
    assert np.size(task.results[0]) == 2
    # (2 + 3 + 4, 3 + 4 + 5): elements 2 and 3 of three members.
    assert task.is_right(np.array([9, 12], np.int32))
    assert not task.is_right(np.array([3, 6], np.int32))
    assert not task.is_right(np.array([9], np.int32))


def test_all_gather_gives_every_member_all_parts_in_order() -> None:
    task = make_task("all_gather", 24, "int32", 1, 3)
    parts = [np.array(part, np.int32) for part in ([0, 1], [1, 2], [2, 3])]

    assert task.source.tolist() == [1, 2]
    assert np.size(task.results[0]) == 6
    assert task.is_right(np.concatenate(parts))
    assert not task.is_right(np.concatenate(parts[::-1]))


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather"])
def test_reset_clears_the_result_and_rewrites_the_input(operation: str) -> None:
    task = make_task(operation, 24, "int32", 1, 3)
    task.inputs[0][...] = 99
    task.results[0][...] = 99

    task.reset()

    assert task.inputs[0].tolist() == task.source.tolist()
    if operation != "all_reduce":
        assert not np.any(task.results[0])


def test_results_of_any_dtype_can_be_read() -> None:
    read([np.zeros(3, np.float16), np.zeros(2, np.int64)])
