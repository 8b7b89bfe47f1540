"""Data sets under PopDistStrategy: whole batches, and as many steps everywhere."""

import logging
from typing import Any

import pytest
import tensorflow as tf

from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import TIMEOUT, on_all

pytestmark = TIMEOUT


def steps_of(strategy: PopDistStrategy, data: tf.data.Dataset) -> list[Any]:
    """Return, of each step, what each local replica gets."""
    return [
        [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]
        for batch in strategy.experimental_distribute_dataset(data)
    ]


def test_each_local_replica_takes_the_next_whole_batch() -> None:
    def program(rank: int) -> list[Any]:
        begin, end = [(0, 7), (10, 14)][rank]
        return steps_of(PopDistStrategy(), tf.data.Dataset.range(begin, end).batch(2))

    assert on_all((2, 1), program) == [
        [[[0, 1], [2, 3]], [[4, 5], [6]]],
        [[[10, 11]], [[12, 13]]],
    ]


def test_replicas_without_a_batch_get_an_empty_one_in_the_last_step() -> None:
    def program(rank: int) -> list[Any]:
        return steps_of(PopDistStrategy(), tf.data.Dataset.range(3).batch(1))

    assert on_all((2,), program) == [[[[0], [1]], [[2], []]]]


def test_all_instances_end_with_the_shortest_data_and_the_first_one_warns() -> None:
    def program(rank: int) -> tuple[list[Any], list[str]]:
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("popdist.tensorflow").addHandler(handler)
        data = tf.data.Dataset.range([3, 2][rank]).batch(1)
        return steps_of(PopDistStrategy(), data), said

    warning = "The data sets of the instances have 3, 2 steps. All of them end after 2."
    steps = [[[0]], [[1]]]
    assert on_all(2, program) == [(steps, [warning]), (steps, [])]


def test_an_instance_without_a_batch_is_named_on_all_of_them() -> None:
    def program(rank: int) -> str:
        data = tf.data.Dataset.range(1 - rank).batch(1)
        with pytest.raises(ValueError, match="without a batch") as error:
            steps_of(PopDistStrategy(), data)
        return str(error.value)

    assert (
        on_all(2, program)
        == [
            "Instance 1 has a data set without a batch, so that no step can be made. "
            "Give each instance one batch or more: a smaller batch, or fewer shards."
        ]
        * 2
    )


def test_data_is_sharded_only_where_the_program_asks_for_it() -> None:
    def program(rank: int) -> list[Any]:
        strategy = PopDistStrategy()
        data = tf.data.Dataset.range(4).batch(1)
        found = [steps_of(strategy, data)]
        strategy.shard_datasets()
        return [*found, steps_of(strategy, data)]

    whole = [[[0]], [[1]], [[2]], [[3]]]
    assert on_all(2, program) == [
        [whole, [[[0]], [[2]]]],
        [whole, [[[1]], [[3]]]],
    ]
