"""Graphcore's recurrent layers, for sequences along the first dimension.

Their variables have Popnn's names, shapes and order of gates, so that checkpoints fit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

Tensor = Any
# The inputs of a time step: `product` of its inputs, `runs` and `score`, if there are
# any.
Element = Mapping[str, Tensor]


class LSTMStateTuple(NamedTuple):
    """The state of an LSTM, as in tf.compat.v1.nn.rnn_cell."""

    c: Tensor
    h: Tensor


def _function(activation: Any) -> Any:
    function = activation
    if isinstance(activation, str):
        function = getattr(tf.nn, activation, None)
    if not callable(function):
        raise ValueError(
            f"The activation {activation!r} is not a function of tf.nn. Give the name "
            "of one, such as tanh, or a function."
        )
    return function


class _PopnnRNN:
    """A layer with one matrix for inputs and states, and biases for each gate."""

    _gates: int
    # How many tensors a state has.
    _state_count = 1
    # The scope of the variables, unless the program names one.
    _scope: str

    def __init__(
        self,
        num_units: int,
        dtype: Any = tf.float32,
        partials_dtype: Any = tf.float32,
        seed: int | None = None,
        weights_initializer: Any = None,
        bias_initializer: Any = None,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        return_state: bool = True,
        name: str | None = None,
        available_memory_proportion_fwd: float | None = None,
        available_memory_proportion_bwd: float | None = None,
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a layer; the first call makes its variables.

        Args:
            num_units: The size of its outputs.
            dtype: tf.float16 or tf.float32.
            partials_dtype: Has no effect: CPUs add in the type of the operands.
            seed: The seed of the initial weights.
            weights_initializer: The initializer of all weights; by default Glorot's
                uniform one.
            bias_initializer: The initializer of all biases, which are 0 by default.
            activation: The function of candidates and outputs.
            recurrent_activation: The function of gates.
            return_state: Whether a call returns the last state, too.
            name: The scope of its variables.
            available_memory_proportion_fwd: Has no effect, nor have the next three.
            available_memory_proportion_bwd: See above.
            options: See above.
            options_bwd: See above.
        """
        self.dtype = tf.as_dtype(dtype)
        if self.dtype not in (tf.float16, tf.float32):
            raise ValueError(f"Only support float16, float32, provided {dtype}")
        self.num_units, self.name = num_units, name
        self._initializers = {
            "kernel": weights_initializer
            or tf.compat.v1.glorot_uniform_initializer(seed, self.dtype),
            "biases": bias_initializer
            or tf.compat.v1.zeros_initializer(dtype=self.dtype),
        }
        self._activation = _function(activation)
        self._gate = _function(recurrent_activation)
        self._return_state = return_state
        self.kernel: Any = None
        self.biases: Any = None

    def build(self, input_shape: Any) -> None:
        """Make the variables, for inputs of this shape."""
        shape = tf.TensorShape(input_shape)
        if shape.rank != 3 or shape[-1] is None:
            raise ValueError(
                f"{type(self).__name__} takes inputs of the shape [time, batch, size] "
                f"with a known size, not {shape}."
            )
        shapes = {
            "kernel": [shape[-1] + self.num_units, self._gates * self.num_units],
            "biases": self._bias_shape(),
        }
        scope = tf.compat.v1.variable_scope(
            self.name, default_name=self._scope, use_resource=True
        )
        with scope:
            self.kernel, self.biases = (
                tf.compat.v1.get_variable(name, shapes[name], self.dtype, initializer)
                for name, initializer in self._initializers.items()
            )
            self._build_more()

    def _build_more(self) -> None:
        """Make the variables that only some layers have."""

    def _bias_shape(self) -> list[int]:
        return [self._gates, self.num_units]

    def __call__(
        self, inputs: Tensor, initial_state: Any = None, training: bool = True
    ) -> Any:
        """Return the outputs of all time steps, and the last state.

        Args:
            inputs: A tensor of the shape [time, batch, size].
            initial_state: The state in the form of a result; None for zeros.
            training: Has no effect: gradients can always be computed.
        """
        return self._run(inputs, initial_state, {})

    def _run(self, inputs: Tensor, initial_state: Any, elements: Element) -> Any:
        """Return the outputs of all time steps, and the last state.

        Args:
            inputs: A tensor of the shape [time, batch, size].
            initial_state: The state in the form of a result; None for zeros.
            elements: Further inputs of each time step.
        """
        inputs = tf.convert_to_tensor(inputs, self.dtype)
        if self.kernel is None:
            self.build(inputs.shape)
        if initial_state is None:
            zeros = tf.zeros([tf.shape(inputs)[1], self.num_units], self.dtype)
            first = (zeros,) * self._state_count
        else:
            parts = self._split_state(initial_state)
            first = tuple(tf.convert_to_tensor(each, self.dtype) for each in parts)
        of_inputs, of_states = tf.split(self.kernel, [-1, self.num_units])
        # All time steps at once.
        products = tf.tensordot(inputs, of_inputs, 1)
        products.set_shape([*inputs.shape[:2], of_inputs.shape[-1]])

        def step(states: tuple[Tensor, ...], element: Element) -> tuple[Tensor, ...]:
            after = self._step(states, element, of_states)
            if "runs" not in element:
                return after
            # After the end of a sequence its state stays.
            return tuple(
                tf.where(element["runs"], new, old)
                for new, old in zip(after, states, strict=True)
            )

        all_elements = {"product": products, **elements}
        states = tf.scan(step, all_elements, first, parallel_iterations=1)
        outputs = states[0]
        if "runs" in elements:
            outputs = tf.where(elements["runs"], outputs, tf.zeros_like(outputs))
        if not self._return_state:
            return outputs
        return outputs, self._state([each[-1] for each in states], initial_state)

    def _split_state(self, state: Any) -> Sequence[Tensor]:
        """Return the tensors of a state; the first one is the output."""
        return (state,)

    def _state(self, states: list[Tensor], initial: Any) -> Any:
        """Return the last states, in the form of the initial one."""
        return states[0]

    def _step(
        self, states: tuple[Tensor, ...], element: Element, of_states: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the states after a time step."""
        raise NotImplementedError


def _running(inputs: Tensor, seq_len: Tensor) -> Element:
    """Return which sequences go on in each time step."""
    runs = tf.sequence_mask(seq_len, tf.shape(inputs)[0])
    return {"runs": tf.transpose(runs)[:, :, tf.newaxis]}


def _time_first(tensor: Tensor, time_major: bool) -> Tensor:
    """Return a tensor with time as its first dimension."""
    if time_major:
        return tensor
    tensor = tf.convert_to_tensor(tensor)
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])


class PopnnLSTM(_PopnnRNN):
    """An LSTM with its gates in the order forget, input, candidate, output."""

    _gates = 4
    _state_count = 2
    _scope = "popnn_lstm"

    def _split_state(self, state: Any) -> Sequence[Tensor]:
        if not issubclass(type(state), tuple):
            raise ValueError(
                f"Invalid initial_state type: `{type(state)}`, expecting "
                "`LSTMStateTuple`."
            )
        # In older releases a tuple of output and cell.
        return (state.h, state.c) if hasattr(state, "c") else state

    def _step(
        self, states: tuple[Tensor, ...], element: Element, of_states: Tensor
    ) -> tuple[Tensor, ...]:
        output, cell = states
        gates = element["product"] + output @ of_states + tf.reshape(self.biases, [-1])
        forget, into, candidate, out = tf.split(gates, 4, axis=-1)
        cell = self._gate(forget) * cell + self._gate(into) * self._activation(
            candidate
        )
        return self._gate(out) * self._activation(cell), cell

    def _state(self, states: list[Tensor], initial: Any) -> Any:
        output, cell = states
        if initial is None:
            return LSTMStateTuple(cell, output)
        return type(initial)(cell, output) if hasattr(initial, "c") else (output, cell)


class PopnnDynamicLSTM(PopnnLSTM):
    """An LSTM of sequences of different lengths, with outputs of 0 after their ends."""

    _scope = "popnn_dynamic_lstm"

    # The lengths come before the state, as in the original.
    def __call__(  # type: ignore[override]
        self,
        inputs: Tensor,
        seq_len: Tensor,
        initial_state: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the outputs of all time steps, and the last state of each sequence.

        Args:
            inputs: A tensor of the shape [time, batch, size].
            seq_len: The lengths of the sequences.
            initial_state: The state in the form of a result; None for zeros.
            training: Has no effect: gradients can always be computed.
        """
        return self._run(inputs, initial_state, _running(inputs, seq_len))


class PopnnGRU(_PopnnRNN):
    """A GRU with its gates in the order reset, update, candidate."""

    _gates = 3
    _scope = "popnn_gru"

    def __init__(self, *args: Any, reset_after: bool = False, **kwargs: Any) -> None:
        """Make a layer; see PopnnLSTM for the other arguments.

        Args:
            args: The others.
            reset_after: Whether the product of the state is reset, not the state; then
                there are two biases for each gate.
            kwargs: The others, by name.
        """
        self._reset_after = reset_after
        super().__init__(*args, **kwargs)

    def _bias_shape(self) -> list[int]:
        shape = super()._bias_shape()
        return [shape[0], 2, shape[1]] if self._reset_after else shape

    def _step(
        self, states: tuple[Tensor, ...], element: Element, of_states: Tensor
    ) -> tuple[Tensor, ...]:
        (state,) = states
        reset_in, update_in, candidate_in = tf.split(element["product"], 3, axis=-1)
        of_reset, of_update, of_candidate = tf.split(of_states, 3, axis=-1)
        of_input, of_state = self._both_biases()
        bias = of_input + of_state
        reset = self._gate(reset_in + state @ of_reset + bias[0])
        update = self._gate(update_in + state @ of_update + bias[1])
        if "score" in element:
            update = (1 - element["score"]) * update
        if self._reset_after:
            past = reset * (state @ of_candidate + of_state[2])
        else:
            past = (reset * state) @ of_candidate
        candidate = self._activation(candidate_in + past + of_input[2])
        return (update * state + (1 - update) * candidate,)

    def _both_biases(self) -> tuple[Tensor, Tensor]:
        """Return the biases of the inputs and of the state, by gate."""
        if self._reset_after:
            of_input, of_state = tf.unstack(self.biases, axis=1)
            return of_input, of_state
        return self.biases, tf.zeros_like(self.biases)


class PopnnDynamicGRU(PopnnGRU):
    """A GRU of sequences of different lengths, with outputs of 0 after their ends."""

    _scope = "popnn_dynamic_gru"

    # The lengths come before the state, as in the original.
    def __call__(  # type: ignore[override]
        self,
        inputs: Tensor,
        seq_len: Tensor,
        initial_state: Any = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Return the outputs of all time steps, and the last state of each sequence.

        Args:
            inputs: A tensor of the shape [time, batch, size].
            seq_len: The lengths of the sequences.
            initial_state: The state in the form of a result; None for zeros.
            training: Has no effect: gradients can always be computed.
            time_major: False for inputs of the shape [batch, time, size]. Outputs
                have the time first in any case.
        """
        inputs = _time_first(inputs, time_major)
        return self._run(inputs, initial_state, _running(inputs, seq_len))


class PopnnAUGRU(PopnnGRU):
    """A GRU with an update gate that is scaled down by the scores of an attention.

    Its biases are the variables `bias_r_u`, of the first two gates, and `bias_c`; as
    in the original, `biases` has no effect.
    """

    _scope = "popnn_augru"

    def _build_more(self) -> None:
        v1 = tf.compat.v1
        self._of_gates, self._of_candidate = (
            v1.get_variable(name, [count, self.num_units], self.dtype, initializer())
            for name, count, initializer in (
                ("bias_r_u", 2, v1.ones_initializer),
                ("bias_c", 1, v1.zeros_initializer),
            )
        )

    def _both_biases(self) -> tuple[Tensor, Tensor]:
        biases = tf.concat([self._of_gates, self._of_candidate], axis=0)
        return biases, biases if self._reset_after else tf.zeros_like(biases)

    # The lengths and scores come before the state, as in the original.
    def __call__(  # type: ignore[override]
        self,
        inputs: Tensor,
        seq_len: Tensor,
        attention_score: Tensor,
        initial_state: Any = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Return the outputs of all time steps, and the last state of each sequence.

        Args:
            inputs: A tensor of the shape [time, batch, size].
            seq_len: The lengths of the sequences.
            attention_score: A tensor of the shape [time, batch].
            initial_state: The state in the form of a result; None for zeros.
            training: Has no effect: gradients can always be computed.
            time_major: False for inputs and scores with the batch as their first
                dimension. Outputs have the time first in any case.
        """
        inputs = _time_first(inputs, time_major)
        scores = tf.cast(_time_first(attention_score, time_major), self.dtype)
        elements = {
            **_running(inputs, seq_len),
            "score": scores[:, :, tf.newaxis],
        }
        return self._run(inputs, initial_state, elements)
