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
LENGTHS, SCORES = [2, 4], np.ones((TIME, BATCH), np.float32)
STATES = RANDOM.normal(size=(2, BATCH, UNITS)).astype(np.float32)


def weights(gates: int, biases: tuple[int, ...] = ()) -> tuple[Any, Any]:
    kernel = RANDOM.normal(size=(SIZE + UNITS, gates * UNITS)).astype(np.float32)
    shape = (gates, *biases, UNITS)
    return kernel, RANDOM.normal(size=shape).astype(np.float32)


def run_in_session(
    layer: Any, kernel: Any, biases: Any, state: Any = None, before: Any = ()
) -> Any:
    """Return what a layer of these weights makes of INPUTS, and its gradient.

    Args:
        layer: The layer.
        kernel: Its variable of this name.
        biases: The same.
        state: Its initial state.
        before: The arguments between the inputs and the state.
    """
    inputs = v1.placeholder(tf.float32, INPUTS.shape)
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        outputs, last = ipu.ipu_compiler.compile(
            lambda x: layer(x, *before, state), [inputs]
        )
        [slope] = tf.gradients(tf.reduce_sum(outputs * outputs), inputs)
    with v1.Session() as session:
        layer.kernel.load(kernel, session)
        layer.biases.load(biases, session)
        return session.run([outputs, last, slope], {inputs: INPUTS})


def reordered(matrix: Any, order: list[int], axis: int = -1) -> Any:
    """Return a matrix whose gates are in another order."""
    gates = np.split(matrix, len(order), axis)
    return np.concatenate([gates[gate] for gate in order], axis)


def of_keras(
    layer: Any, kernel: Any, bias: Any, state: Any, lengths: Any = None
) -> Any:
    """Return the same of a layer of Keras, which has the batch first.

    Keras repeats the last output after the end of a sequence, where Popnn has 0.
    """
    mask = tf.sequence_mask([TIME] * BATCH if lengths is None else lengths, TIME)
    x = tf.constant(INPUTS.transpose(1, 0, 2))
    layer.build(x.shape)
    layer.set_weights([kernel[:SIZE], kernel[SIZE:], bias])
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs, *last = layer(x, initial_state=state, mask=mask)
        outputs = tf.where(mask[:, :, None], outputs, 0.0)
        loss = tf.reduce_sum(outputs * outputs)
    slope = tape.gradient(loss, x)
    return [
        np.transpose(outputs, (1, 0, 2)),
        *[each.numpy() for each in last],
        np.transpose(slope, (1, 0, 2)),
    ]


@pytest.mark.parametrize(
    ("lengths", "with_state"),
    [(None, False), (None, True), ([2, 4], True), ([1, 3], False)],
)
def test_an_lstm_has_the_gates_forget_input_candidate_output(
    with_state: bool, lengths: Any
) -> None:
    kernel, biases = weights(4)
    h, c = STATES if with_state else np.zeros_like(STATES)
    # Keras has input, forget, candidate, output.
    order = [1, 0, 2, 3]
    outputs, last_h, last_c, slope = of_keras(
        tf_keras.layers.LSTM(UNITS, return_sequences=True, return_state=True),
        reordered(kernel, order),
        reordered(biases, order, 0).ravel(),
        [tf.constant(h), tf.constant(c)],
        lengths,
    )

    with tf.Graph().as_default():
        kind = ipu.rnn_ops.PopnnDynamicLSTM if lengths else ipu.rnn_ops.PopnnLSTM
        layer = kind(UNITS, name="lstm")
        state = ipu.rnn_ops.LSTMStateTuple(c, h) if with_state else None
        before = [lengths] if lengths else []
        ours, last, our_slope = run_in_session(layer, kernel, biases, state, before)
        names = [variable.name for variable in v1.trainable_variables()]

    np.testing.assert_allclose(ours, outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.h, last_h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.c, last_c, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(our_slope, slope, rtol=1e-3, atol=1e-4)
    assert names == ["lstm/kernel:0", "lstm/biases:0"]


@pytest.mark.parametrize(
    ("lengths", "reset_after"),
    [(None, False), (None, True), ([2, 4], True), ([1, 3], False)],
)
def test_a_gru_has_the_gates_reset_update_candidate(
    reset_after: bool, lengths: Any
) -> None:
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
        lengths,
    )

    with tf.Graph().as_default():
        kind = ipu.rnn_ops.PopnnDynamicGRU if lengths else ipu.rnn_ops.PopnnGRU
        layer = kind(UNITS, reset_after=reset_after)
        ours, our_last, our_slope = run_in_session(
            layer, kernel, biases, STATES[0], [lengths] if lengths else []
        )

    np.testing.assert_allclose(ours, outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(our_last, last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(our_slope, slope, rtol=1e-3, atol=1e-4)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("reset_after", [False, True])
def test_an_augru_scales_its_update_gate_by_the_attention(reset_after: bool) -> None:
    """Its formula, step by step, in numpy."""
    scores = RANDOM.random((TIME, BATCH)).astype(np.float32)
    lengths = np.array([2, 4])
    v1.set_random_seed(1)

    layer = ipu.rnn_ops.PopnnAUGRU(UNITS, reset_after=reset_after, seed=1)
    outputs, last = layer(INPUTS, lengths, scores, STATES[0])
    other, _ = layer(
        *(INPUTS.transpose(1, 0, 2), lengths, scores.T, STATES[0]), time_major=False
    )

    kernel = layer.kernel.numpy()
    state, expected = STATES[0], []
    for time in range(TIME):
        x = INPUTS[time] @ kernel[:SIZE]
        past = state @ kernel[SIZE:]
        # Ones for the two gates, twice if the state has biases of its own.
        reset, update = (
            sigmoid((x + past)[:, at : at + UNITS] + 1 + reset_after)
            for at in (0, UNITS)
        )
        update = update * (1 - scores[time][:, None])
        of_candidate = kernel[SIZE:, 2 * UNITS :]
        if reset_after:
            past = reset * (state @ of_candidate)
        else:
            past = (reset * state) @ of_candidate
        new = update * state + (1 - update) * np.tanh(x[:, 2 * UNITS :] + past)
        runs = (time < lengths)[:, None]
        state = np.where(runs, new, state)
        expected.append(np.where(runs, new, 0))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, state, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outputs, other)


@pytest.mark.parametrize(
    ("kind", "more", "names"),
    [
        ("PopnnLSTM", (), ["kernel", "biases"]),
        ("PopnnDynamicLSTM", (LENGTHS,), ["kernel", "biases"]),
        ("PopnnGRU", (), ["kernel", "biases"]),
        ("PopnnDynamicGRU", (LENGTHS,), ["kernel", "biases"]),
        ("PopnnAUGRU", (LENGTHS, SCORES), ["kernel", "biases", "bias_r_u", "bias_c"]),
    ],
)
def test_variables_have_the_names_of_the_original(
    kind: str, more: tuple[Any, ...], names: list[str]
) -> None:
    scope = {
        "PopnnLSTM": "popnn_lstm",
        "PopnnDynamicLSTM": "popnn_dynamic_lstm",
        "PopnnGRU": "popnn_gru",
        "PopnnDynamicGRU": "popnn_dynamic_gru",
        "PopnnAUGRU": "popnn_augru",
    }[kind]
    with tf.Graph().as_default():
        getattr(ipu.rnn_ops, kind)(UNITS)(INPUTS, *more)
        variables = [variable.name for variable in v1.trainable_variables()]

    assert variables == [f"{scope}/{name}:0" for name in names]


def test_a_layer_runs_where_sizes_are_dimensions() -> None:
    """Programs for TensorFlow 1 call disable_v2_behavior()."""
    v1.disable_v2_tensorshape()
    try:
        with tf.Graph().as_default():
            outputs, _ = ipu.rnn_ops.PopnnLSTM(UNITS)(tf.constant(INPUTS))
    finally:
        v1.enable_v2_tensorshape()

    assert outputs.shape == [TIME, BATCH, UNITS]


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
            "The activation 'tan' is not a function of tf.nn",
        ),
    ],
)
def test_a_mistake_is_explained(mistake: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mistake()
