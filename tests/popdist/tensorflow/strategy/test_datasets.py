"""Data sets under PopDistStrategy: whole batches, and as many steps everywhere."""

import logging
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import on_all


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


def test_steps_of_batches_of_a_fixed_shape_are_complete() -> None:
    def program(rank: int) -> list[Any]:
        strategy = PopDistStrategy()
        begin, end = [(0, 5), (10, 13)][rank]
        data = tf.data.Dataset.range(begin, end).batch(1, drop_remainder=True)
        iterator = iter(strategy.experimental_distribute_dataset(data))
        shapes = [
            each.shape.as_list()
            for each in strategy.experimental_local_results(iterator.get_next())
        ]
        return [shapes, steps_of(strategy, data), steps_of(strategy, data.repeat(2))]

    first = [[[0], [1]], [[2], [3]]]
    second = [[[10]], [[11]]]
    assert on_all((2, 1), program) == [
        [[[1], [1]], first, [*first, [[4], [0]], [[1], [2]], [[3], [4]]]],
        [[[1]], second, [*second, [[12]], [[10]], [[11]]]],
    ]


def steps_in_function(strategy: PopDistStrategy, data: Any) -> list[Any]:
    """Return what steps_of() does, by a loop in a tf.function."""
    local = len(strategy.extended.worker_devices)

    @tf.function
    def loop(data: Any) -> Any:
        found = tf.TensorArray(
            tf.string, size=0, dynamic_size=True, element_shape=(local,)
        )
        for batch in data:
            parts = strategy.experimental_local_results(batch)
            row = [tf.io.serialize_tensor(tf.identity(part)) for part in parts]
            found = found.write(found.size(), tf.stack(row))
        return found.stack()

    return [
        [tf.io.parse_tensor(part, tf.int64).numpy().tolist() for part in row]
        for row in loop(data).numpy()
    ]


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize("fixed", [False, True], ids=["any shape", "fixed shape"])
def test_instances_agree_on_each_step_of_data_of_unknown_length(fixed: bool) -> None:
    def program(rank: int) -> list[Any]:
        strategy = PopDistStrategy()
        begin, end = [(0, 5), (10, 14)][rank]

        def elements() -> Any:
            yield from range(begin, end)

        spec = tf.TensorSpec((), tf.int64)
        data = tf.data.Dataset.from_generator(elements, output_signature=spec)
        if rank:
            # The length of this one is known.
            data = tf.data.Dataset.range(begin, end)
        data = data.batch(1, drop_remainder=fixed)
        distributed = strategy.experimental_distribute_dataset(data)
        in_function = tf.function(lambda iterator: iterator.get_next())
        for get_next in (lambda iterator: iterator.get_next(), in_function):
            iterator = iter(distributed)
            for _ in range(2 if fixed else 3):
                get_next(iterator)
            with pytest.raises(tf.errors.OutOfRangeError):
                get_next(iterator)
        return [
            steps_of(strategy, data),
            steps_in_function(strategy, distributed),
            steps_of(strategy, data),
        ]

    steps = [
        [[[0], [1]], [[2], [3]], *([] if fixed else [[[4], []]])],
        [[[10]], [[11]], *([] if fixed else [[[12]]])],
    ]
    assert on_all((2, 1), program) == [[each] * 3 for each in steps]


def test_data_of_functions_end_with_the_shortest_too() -> None:
    def program(rank: int) -> list[Any]:
        strategy = PopDistStrategy()
        numbers = []

        def data(context: tf.distribute.InputContext) -> tf.data.Dataset:
            numbers.append(
                (context.input_pipeline_id, context.num_input_pipelines),
            )
            begin = 10 * context.input_pipeline_id
            return tf.data.Dataset.range(begin, begin + 3 - rank).batch(1)

        per_replica = tf.distribute.InputOptions(
            experimental_fetch_to_device=False,
            experimental_replication_mode=(
                tf.distribute.InputReplicationMode.PER_REPLICA
            ),
        )
        found = [
            [
                [part.numpy().tolist() for part in local(batch)]
                for batch in strategy.distribute_datasets_from_function(data, options)
            ]
            for options in (None, per_replica)
            for local in [strategy.experimental_local_results]
        ]
        return [numbers, *found]

    assert on_all((2, 2), program) == [
        [
            [(0, 2), (0, 4), (1, 4)],
            [[[0], [1]]],
            [[[0], [10]], [[1], [11]]],
        ],
        [
            [(1, 2), (2, 4), (3, 4)],
            [[[10], [11]]],
            [[[20], [30]], [[21], [31]]],
        ],
    ]


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
        with pytest.raises(ValueError, match="too few batches") as error:
            steps_of(PopDistStrategy(), data)
        return str(error.value)

    assert (
        on_all(2, program)
        == [
            "Instance 1 has too few batches for a step, which takes one batch, or one "
            "for each local replica where batches have a fixed shape "
            "(drop_remainder=True). Use a smaller batch, or fewer shards."
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


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "tf.function"])
def test_rows_of_a_step_that_differ_in_number_are_shared_out_evenly(
    in_function: bool,
) -> None:
    def program(rank: int) -> list[Any]:
        strategy = PopDistStrategy()
        find = steps_of if not in_function else steps_in_function

        def steps(data: tf.data.Dataset) -> list[Any]:
            distributed = strategy.experimental_distribute_dataset(data)
            return find(strategy, distributed if in_function else data)[-1]

        return [
            *(steps(tf.data.Dataset.range(n).batch(4)) for n in (16, 14, 9)),
            steps(tf.data.Dataset.range(4).batch(4)),
        ]

    assert on_all((3,), program) == [
        [
            [[12, 13], [14], [15]],
            [[12], [13], []],
            [[0, 1, 2], [3, 4, 5], [6, 7, 8]],
            [[0, 1], [2], [3]],
        ]
    ]


def test_rows_stay_in_their_batch_where_tensors_or_batches_differ_in_shape() -> None:
    def program(rank: int) -> list[Any]:
        strategy = PopDistStrategy()

        def graphs() -> Any:
            yield np.arange(4), np.arange(2)
            yield np.arange(4, 6), np.arange(2, 4)
            yield np.arange(6, 10), np.arange(4, 6)

        def widths() -> Any:
            yield np.full((2, 3), 1)
            yield np.full((1, 2), 2)

        numbers = tf.TensorSpec((None,), tf.int64)
        tables = tf.TensorSpec((None, None), tf.int64)
        found = []
        for data, specs in ((graphs, (numbers, numbers)), (widths, tables)):
            made = tf.data.Dataset.from_generator(data, output_signature=specs)
            for step in strategy.experimental_distribute_dataset(made):
                local = [
                    tf.nest.map_structure(lambda x: x.numpy().tolist(), each)
                    for each in strategy.experimental_local_results(step)
                ]
                found.append(local)
        return found

    assert on_all((2,), program) == [
        [
            [([0, 1, 2, 3], [0, 1]), ([4, 5], [2, 3])],
            [([6, 7, 8, 9], [4, 5]), ([], [])],
            [[[1, 1, 1], [1, 1, 1]], [[2, 2]]],
        ]
    ]
