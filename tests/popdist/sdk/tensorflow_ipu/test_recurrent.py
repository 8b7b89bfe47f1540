"""Graphcore's recurrent layers compute what Keras' layers of the same weights do."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python import ipu

v1 = tf.compat.v1
RANDOM = np.random.default_rng(1)
TIME, BATCH, SIZE, UNITS = 4, 2, 3, 5
INPUTS = RANDOM.normal(size=(TIME, BATCH, SIZE)).astype(np.float32)
STATES = RANDOM.normal(size=(2, BATCH, UNITS)).astype(np.float32)


def weights(gates: int, biases: tuple[int, ...] = ()) -> tuple[Any, Any]:
    kernel = RANDOM.normal(size=(SIZE + UNITS, gates * UNITS)).astype(np.float32)
    shape = (gates, *biases, UNITS)
    return kernel, RANDOM.normal(size=shape).astype(np.float32)


def run_in_session(layer: Any, kernel: Any, biases: Any, state: Any = None) -> Any:
    """Return what a layer of these weights makes of INPUTS, and its gradient."""
    inputs = v1.placeholder(tf.float32, INPUTS.shape)
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        outputs, last = ipu.ipu_compiler.compile(lambda x: layer(x, state), [inputs])
        [slope] = tf.gradients(tf.reduce_sum(outputs * outputs), inputs)
    with v1.Session() as session:
        layer.kernel.load(kernel, session)
        layer.biases.load(biases, session)
        return session.run([outputs, last, slope], {inputs: INPUTS})


def reordered(matrix: Any, order: list[int], axis: int = -1) -> Any:
    """Return a matrix whose gates are in another order."""
    gates = np.split(matrix, len(order), axis)
    return np.concatenate([gates[gate] for gate in order], axis)


def of_keras(layer: Any, kernel: Any, bias: Any, state: Any) -> Any:
    """Return the same of a layer of Keras, which has the batch first."""
    x = tf.constant(INPUTS.transpose(1, 0, 2))
    layer.build(x.shape)
    layer.set_weights([kernel[:SIZE], kernel[SIZE:], bias])
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs, *last = layer(x, initial_state=state)
        loss = tf.reduce_sum(outputs * outputs)
    slope = tape.gradient(loss, x)
    return [
        np.transpose(outputs, (1, 0, 2)),
        *[each.numpy() for each in last],
        np.transpose(slope, (1, 0, 2)),
    ]


@pytest.mark.parametrize("with_state", [False, True])
def test_an_lstm_has_the_gates_forget_input_candidate_output(with_state: bool) -> None:
    kernel, biases = weights(4)
    h, c = STATES if with_state else np.zeros_like(STATES)
    # Keras has input, forget, candidate, output.
    order = [1, 0, 2, 3]
    outputs, last_h, last_c, slope = of_keras(
        tf_keras.layers.LSTM(UNITS, return_sequences=True, return_state=True),
        reordered(kernel, order),
        reordered(biases, order, 0).ravel(),
        [tf.constant(h), tf.constant(c)],
    )

    with tf.Graph().as_default():
        layer = ipu.rnn_ops.PopnnLSTM(UNITS, name="lstm")
        state = ipu.rnn_ops.LSTMStateTuple(c, h) if with_state else None
        ours, last, our_slope = run_in_session(layer, kernel, biases, state)
        names = [variable.name for variable in v1.trainable_variables()]

    np.testing.assert_allclose(ours, outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.h, last_h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.c, last_c, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(our_slope, slope, rtol=1e-3, atol=1e-4)
    assert names == ["lstm/kernel:0", "lstm/biases:0"]


@pytest.mark.parametrize("reset_after", [False, True])
def test_a_gru_has_the_gates_reset_update_candidate(reset_after: bool) -> None:
    kernel, biases = weights(3, (2,) if reset_after else ())
    # Keras has update, reset, candidate.
    order = [1, 0, 2]
    bias = reordered(biases, order, 0)
    bias = bias.transpose(1, 0, 2).reshape(2, -1) if reset_after else bias.ravel()
    outputs, last, slope = of_keras(
        tf_keras.layers.GRU(
            UNITS, return_sequences=True, return_state=True, reset_after=reset_after
        ),
        reordered(kernel, order),
        bias,
        [tf.constant(STATES[0])],
    )

    with tf.Graph().as_default():
        layer = ipu.rnn_ops.PopnnGRU(UNITS, reset_after=reset_after)
        ours, our_last, our_slope = run_in_session(layer, kernel, biases, STATES[0])

    np.testing.assert_allclose(ours, outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(our_last, last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(our_slope, slope, rtol=1e-3, atol=1e-4)


def test_a_layer_of_16_bits_runs_eagerly_and_may_return_no_state() -> None:
    layer = ipu.rnn_ops.PopnnLSTM(UNITS, dtype=tf.float16, return_state=False)

    outputs = layer(tf.constant(INPUTS, tf.float16))

    assert (outputs.shape, outputs.dtype) == ((TIME, BATCH, UNITS), tf.float16)
    assert np.array_equal(outputs, layer(tf.constant(INPUTS, tf.float16)))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: ipu.rnn_ops.PopnnGRU(3, tf.float64), "Only support float16, float32"),
        (
            lambda: ipu.rnn_ops.PopnnLSTM(3)(tf.ones((2, 3))),
            r"takes inputs of the shape \[time, batch, size\] with a known size, not",
        ),
        (
            lambda: ipu.rnn_ops.PopnnLSTM(3)(tf.ones((2, 1, 3)), tf.ones((1, 3))),
            "expecting `LSTMStateTuple`",
        ),
        (
            lambda: ipu.rnn_ops.PopnnLSTM(3, activation="tan"),
            "The activation 'tan' is no function of tf.nn",
        ),
    ],
)
def test_a_mistake_is_explained(mistake: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mistake()
