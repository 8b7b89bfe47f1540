"""Elastic Horovod for TensorFlow: states of variables and models, and callbacks."""

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.popdist.sdk.horovod.tensorflow.ranks import hvd, results

# isort: split
import horovod.keras
import horovod.tensorflow.keras as hvd_keras
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt


@pytest.mark.parametrize("version", [2, 3])
def test_the_state_of_a_model_is_shared_kept_and_restored(version: int) -> None:
    def rank(me: int) -> Any:
        library = keras if version == 3 else tf_keras
        model = library.Sequential(
            [library.Input((1,)), library.layers.Dense(1, use_bias=False)]
        )
        optimizer = library.optimizers.SGD(1.0, momentum=0.5)
        model.compile(optimizer, "mean_absolute_error")
        model.set_weights([np.array([[5.0 + me]])])
        data = np.ones((1, 1)), np.full((1, 1), -10.0)
        model.fit(*data, verbose=0)
        state = horovod.keras.elastic.KerasState(model, batch=me)
        state.sync()
        found = [(model.get_weights()[0].item(), state.batch)]
        for _ in range(2):
            # The momentum is restored, too.
            model.fit(*data, verbose=0)
            state.batch += 1
            found.append((model.get_weights()[0].item(), state.batch))
            state.restore()
        return found, int(tf.convert_to_tensor(optimizer.iterations))

    assert results(2, rank) == [([(4.0, 0), (2.5, 1), (2.5, 1)], 1)] * 2


def test_a_model_must_be_built() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])

    with pytest.raises(ValueError, match=r"is not built, .* Call model\.build"):
        hvd.elastic.TensorFlowKerasState(model)


def test_variables_of_a_sessions_graph_are_shared_and_restored() -> None:
    def rank(me: int) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variable = tf.compat.v1.get_variable("x", initializer=1.0 + me)
            session.run(tf.compat.v1.global_variables_initializer())
            state = hvd.elastic.TensorFlowState(epoch=me)
            state.sync()
            shared = float(session.run(variable))
            variable.load(9.0, session)
            state.restore()
            return shared, float(session.run(variable)), state.epoch

    assert results(2, rank) == [(1.0, 1.0, 0)] * 2


def test_callbacks_keep_the_batch_and_the_epoch_and_commit() -> None:
    class State:
        """A state that notes its commits, and ends the training at one of them."""

        def __init__(self) -> None:
            self.batch = self.epoch = 0
            self.commits: list[tuple[int, int]] = []

        def commit(self) -> None:
            self.commits.append((self.epoch, self.batch))
            if len(self.commits) == 4:
                raise HostsUpdatedInterrupt

    def rank(_: int) -> Any:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        state, elastic = State(), hvd_keras.elastic
        callbacks = [
            elastic.UpdateEpochStateCallback(state),
            elastic.UpdateBatchStateCallback(state),
            elastic.CommitStateCallback(state, batches_per_commit=2),
        ]
        data = np.ones((5, 1))

        def fit() -> None:
            epochs = 2 - state.epoch
            model.fit(data, data, 1, epochs, verbose=0, callbacks=callbacks)

        with pytest.raises(HostsUpdatedInterrupt):
            fit()
        fit()
        return state.commits

    # After batches 2 and 4 and the epoch, and then after the next batch, in which the
    # state ends the training. The second epoch begins again.
    after_an_epoch = [(0, 1), (0, 3), (1, 0)]
    again = [(1, 1), (1, 3), (2, 0)]
    assert results(1, rank) == [[*after_an_epoch, (1, 0), *again]]


# As TensorFlow words it: the lines around the error say where the graph was made.
GRAPH_ERROR = """Graph execution error:

Detected at node PopdistReduce defined at (most recent call last):
  File "<stdin>", line 5, in <module>

FailedCallError: Instance 1 has ended
\t [[{{node PopdistReduce}}]] [Op:__inference_step_1693]"""


def test_an_error_of_a_graph_in_a_reset_callback_is_the_loss_of_a_rank() -> None:
    def rank(_: int) -> Any:
        records = list[logging.LogRecord]()
        handler = logging.Handler()
        handler.emit = records.append  # type: ignore[method-assign]
        logging.getLogger("horovod").addHandler(handler)
        state = hvd.elastic.ObjectState(step=0)
        resets = list[int]()

        def reset() -> None:
            resets.append(state.step)
            if len(resets) == 1:
                raise tf.errors.UnknownError(None, None, GRAPH_ERROR)

        state.register_reset_callbacks([reset])

        @hvd.elastic.run
        def train(state: Any) -> int:
            if not resets:
                raise HorovodInternalError("Instance 2 has ended")
            return len(resets)

        return train(state), records[-1].getMessage()

    warning = (
        "The training continues from the state that was committed last, because of "
        "FailedCallError: Instance 1 has ended"
    )
    assert results(1, rank) == [(2, warning)]
