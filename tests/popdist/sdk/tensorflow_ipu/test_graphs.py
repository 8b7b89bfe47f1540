"""Programs for TensorFlow 1: graphs, sessions, loops and queues."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu.ipu_infeed_queue import IPUInfeedQueue
from tensorflow.python.ipu.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue

v1 = tf.compat.v1


def numbers(count: int, batch: int = 1) -> tf.data.Dataset:
    values = tf.data.Dataset.from_tensor_slices(np.arange(count, dtype=np.float32))
    return values.batch(batch, drop_remainder=True).repeat()


def run(*fetches: object, feeds: dict[tf.Tensor, object] | None = None) -> list[object]:
    """Return what one session after the other gives, of variables at their start."""
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return [session.run(each, feeds) for each in fetches]


@pytest.mark.usefixtures("graph")
def test_the_cpu_plays_the_part_of_an_ipu_in_every_session() -> None:
    with tf.device("/device:IPU:0"):
        total = tf.constant(1.0) + 2.0

    for config in (None, v1.ConfigProto(), v1.ConfigProto(log_device_placement=False)):
        with v1.Session(config=config) as session:
            assert session.run(total) == 3.0


@pytest.mark.usefixtures("graph")
def test_a_computation_gets_placeholders_and_returns_a_list() -> None:
    x = v1.placeholder(tf.float32, [2])
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        [doubled] = ipu.ipu_compiler.compile(lambda x: 2 * x, [x])

    [values] = run(doubled, feeds={x: [1.0, 2.0]})

    assert list(values) == [2.0, 4.0]


@pytest.mark.usefixtures("graph")
def test_a_computation_of_operations_alone_is_an_operation() -> None:
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        counter = v1.get_variable("counter", initializer=0)
        step = ipu.ipu_compiler.compile(lambda: counter.assign_add(1).op)

    assert run(step, step, counter) == [None, None, 2]


@pytest.mark.usefixtures("graph")
def test_operations_of_a_computation_run_before_its_tensors_are_returned() -> None:
    def computation() -> list[object]:
        weight = v1.get_variable("weight", initializer=1.0)
        return [tf.constant(5.0), weight.assign(3.0).op]

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        result = ipu.ipu_compiler.compile(computation)
        weight = v1.global_variables()[0]

    assert run(result, weight) == [[5.0], 3.0]


@pytest.mark.usefixtures("graph")
def test_operations_with_side_effects_run_though_they_are_not_returned() -> None:
    x = v1.placeholder(tf.float32, [3])

    def computation(x: tf.Tensor) -> list[tf.Tensor]:
        mean = v1.get_variable("mean", initializer=0.0)
        mean.assign_add(tf.reduce_sum(x))
        tf.cond(x[0] > 0, lambda: mean.assign_add(1.0), lambda: mean.assign_add(2.0))
        return [x[0]]

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        result = ipu.ipu_compiler.compile(computation, [x])
        [mean] = v1.global_variables()

    [first, *_, ended] = run(result, result, mean, feeds={x: [1.0, 2.0, 3.0]})

    assert (first, ended) == ([1.0], 14.0)


@pytest.mark.usefixtures("graph")
def test_a_computation_gives_its_variables_no_initial_values_again() -> None:
    def computation() -> tf.Tensor:
        start = tf.random.uniform([]) + 1.0
        weight = v1.get_variable("weight", initializer=lambda: 5.0)
        v1.get_variable("unused", initializer=lambda: 1.0)
        optimizer = v1.train.MomentumOptimizer(1.0, 0.5)
        with tf.control_dependencies([optimizer.minimize(lambda: weight * 2.0)]):
            return start

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        step = ipu.ipu_compiler.compile(computation)
    variables = {each.op.name: each for each in v1.global_variables()}

    # The momentum is 2, and then 3.
    *_, weight, momentum = run(
        step, step, variables["weight"], variables["weight/Momentum"]
    )

    assert (weight, momentum) == (0.0, 3.0)


@pytest.mark.usefixtures("graph")
def test_an_assertion_is_not_compiled() -> None:
    """Nor is it by XLA."""

    def computation() -> tf.Tensor:
        v1.assert_equal(tf.constant([1]) + v1.get_variable("one", initializer=1), 3)
        return tf.constant(4.0)

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        result = ipu.ipu_compiler.compile(computation)

    assert run(result) == [[4.0]]


@pytest.mark.usefixtures("loops")
def test_side_effects_run_in_each_iteration() -> None:
    counter = v1.get_variable("counter", initializer=0, use_resource=True)
    branches = v1.get_variable("branches", initializer=0, use_resource=True)

    def body(total: tf.Tensor) -> tf.Tensor:
        counter.assign_add(2)
        held = v1.get_variable("held", initializer=lambda: 7, use_resource=True)
        held.assign_add(total)
        branches.assign_add(tf.cond(total > 1, lambda: 10, lambda: 1))
        return total + 1

    def computation() -> list[tf.Tensor]:
        return ipu.loops.repeat(3, body, [0])

    result = ipu.ipu_compiler.compile(computation)
    [held] = (each for each in v1.global_variables() if each.op.name == "held")

    assert run(result, counter, branches, held) == [[3], 6, 12, 10]


@pytest.mark.usefixtures("graph")
def test_a_computation_of_a_dictionary_returns_one() -> None:
    result = ipu.ipu_compiler.compile(lambda: {"a": tf.constant(1), "b": [tf.ones(1)]})

    assert run(result) == [{"a": 1, "b": [1.0]}]


@pytest.mark.usefixtures("graph")
def test_variables_in_a_scope_are_resources_with_their_own_names() -> None:
    with v1.variable_scope("model"), ipu.scopes.ipu_scope("/device:IPU:0"):
        variable = v1.get_variable("w", initializer=1.0)

    assert variable.name == "model/w:0"
    assert variable.handle.dtype is tf.resource


@pytest.mark.usefixtures("loops")
def test_a_loop_takes_a_batch_in_each_iteration() -> None:
    queue = IPUInfeedQueue(numbers(6, 2))

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        program = ipu.ipu_compiler.compile(
            lambda: ipu.loops.repeat(
                2, lambda total, x: total + tf.reduce_sum(x), [0.0], queue
            )
        )

    # 0+1+2+3; 4+5, and from the beginning 0+1; and after the initializer again.
    assert run(queue.initializer, program, program) == [None, [6.0], [10.0]]
    assert queue.dequeued


@pytest.mark.usefixtures("loops")
def test_a_dictionary_of_a_data_set_is_passed_by_name() -> None:
    queue = IPUInfeedQueue(tf.data.Dataset.from_tensors({"a": 1.0, "b": 10.0}).repeat())

    program = ipu.loops.repeat(3, lambda t, a, b: t + a * b, [0.0], queue)

    assert run(queue.initializer, program) == [None, 30.0]


@pytest.mark.usefixtures("loops")
def test_a_loop_without_values_is_an_operation() -> None:
    counter = v1.get_variable("counter", initializer=0, use_resource=True)

    loop = ipu.loops.repeat(5, lambda: counter.assign_add(2, read_value=False))

    assert isinstance(loop, tf.Operation)
    assert run(loop, counter) == [None, 10]


@pytest.mark.usefixtures("loops")
def test_a_loop_ends_when_its_condition_does_not_hold() -> None:
    values = ipu.loops.while_loop(
        lambda i, x: i < 4, lambda i, x: (i + 1, x * 2), [0, 1]
    )

    assert run(values) == [[4, 16]]


@pytest.mark.usefixtures("graph")
def test_a_loop_whose_body_returns_other_types_is_refused() -> None:
    with pytest.raises(TypeError, match="Mismatch between input types and output"):
        ipu.loops.repeat(2, lambda x: tf.cast(x, tf.int32), [1.0])


@pytest.mark.usefixtures("graph")
def test_a_body_that_takes_too_few_arguments_is_refused() -> None:
    queue = IPUInfeedQueue(numbers(2))

    with pytest.raises(TypeError) as refusal:
        ipu.loops.repeat(2, lambda total: total, [1.0], queue)

    assert str(refusal.value) == (
        "The loop body gets 1 inputs and 1 from the infeed queue, but takes total."
    )


@pytest.mark.usefixtures("graph")
def test_tensors_after_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="must return tensors first"):
        ipu.ipu_compiler.compile(lambda: [tf.no_op(), tf.constant(1)])


@pytest.mark.usefixtures("loops")
def test_a_queue_for_all_returns_what_was_enqueued_since_the_last_call() -> None:
    queue = IPUOutfeedQueue("all")

    def body(x: tf.Tensor) -> tuple[object, ...]:
        return x + 1, queue.enqueue({"x": x, "pair": tf.stack([x, -x])})

    loop = ipu.loops.repeat(2, body, [0.0])
    dequeue = queue.dequeue()

    _, _, first, second = run(loop, loop, dequeue, dequeue)

    assert first["x"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert first["pair"].tolist() == [[0, 0], [1, -1], [0, 0], [1, -1]]
    assert second["x"].shape == (0,)


@pytest.mark.usefixtures("loops")
def test_a_queue_for_the_last_returns_one() -> None:
    queue = IPUOutfeedQueue(outfeed_mode=IPUOutfeedMode.LAST)

    loop = ipu.loops.repeat(3, lambda x: (x + 1, queue.enqueue((x, x * x))), [0.0])
    dequeue = queue.dequeue()
    [[held]] = [each.values() for each in queue._queues.values()]

    assert run(loop, held.size(), dequeue) == [3.0, 1, (2.0, 4.0)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Nothing has been"):
        run(dequeue)


@pytest.mark.usefixtures("graph")
def test_a_deleter_empties_a_queue() -> None:
    queue = IPUOutfeedQueue()
    enqueue = queue.enqueue(tf.constant(1.0))
    dequeue = queue.dequeue()

    assert run(enqueue, queue.deleter, dequeue)[2].tolist() == []


@pytest.mark.usefixtures("graph")
def test_wrong_uses_of_queues_are_refused() -> None:
    queue = IPUOutfeedQueue()

    with pytest.raises(ValueError, match="has not been enqueued"):
        queue.dequeue()
    with pytest.raises(ValueError, match="must be a tensor, or a tuple or a dict"):
        queue.enqueue("text")
    with pytest.raises(ValueError, match="numbers of axes must be known"):
        queue.enqueue(v1.placeholder(tf.float32))
    with pytest.raises(ValueError, match="keys of an outfeed dictionary"):
        queue.enqueue({1: tf.constant(1.0)})
    queue.enqueue(tf.constant(1.0))
    with pytest.raises(ValueError, match="can only be enqueued once"):
        queue.enqueue(tf.constant(1.0))
    with pytest.raises(ValueError, match=r"\(None,\) is not fully defined"):
        IPUInfeedQueue(tf.data.Dataset.range(5).batch(2))
    with pytest.raises(ValueError, match="must be from 1 to 255"):
        IPUInfeedQueue(numbers(2), prefetch_depth=256)
    with pytest.raises(ValueError, match="now obsolete"):
        IPUInfeedQueue(numbers(2)).get_next()


@pytest.mark.usefixtures("graph")
def test_several_replicas_in_one_process_are_refused() -> None:
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 4
    config.configure_ipu_system()

    def two_shards(x: tf.Tensor) -> tf.Tensor:
        with ipu.scopes.ipu_shard(1):
            return x + 1

    with pytest.raises(NotImplementedError) as refusal:
        ipu.ipu_compiler.compile(two_shards, [1.0])

    assert str(refusal.value) == (
        "popdist's stand-in for tensorflow.python.ipu has no replicas in one process: "
        "the configuration gives this program 2. Select as many IPUs as one replica "
        "uses, which is 2; more replicas are more instances (poprun --num-instances), "
        "after popdist.tensorflow.set_ipu_config."
    )
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    assert run(ipu.ipu_compiler.compile(two_shards, [1.0])) == [[2.0]]
    # Most programs are compiled before the system is configured.
    config.auto_select_ipus = 8
    with pytest.raises(NotImplementedError, match="gives this program 4"):
        config.configure_ipu_system()


@pytest.mark.usefixtures("graph")
def test_variables_can_be_moved_and_seeds_be_set() -> None:
    ipu.utils.reset_ipu_seed(7)
    first = run(tf.random.uniform([3]))[0].tolist()
    with tf.Graph().as_default():
        ipu.utils.reset_ipu_seed(7)
        ipu.utils.move_variable_initialization_to_cpu()
        assert run(tf.random.uniform([3]))[0].tolist() == first
