"""Recurrent operators."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .call import Call, Form, Operator

_Function = Callable[[Tensor], Tensor]
# Takes the inputs of a time step and the states, and returns the new states. The first
# new state is the output of the step.
_Step = Callable[[Tensor, Sequence[Tensor]], list[Tensor]]

_ACTIVATIONS: Mapping[str, _Function] = {
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Tanh": torch.tanh,
}
# Whether each direction goes from the end of a sequence to its begin.
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class _Weights(NamedTuple):
    """The weights of one direction."""

    inputs: Tensor
    recurrent: Tensor
    # The biases of the inputs and of the recurrence.
    offset: Tensor
    recurrent_offset: Tensor
    activations: Sequence[_Function]


class _Kind(NamedTuple):
    """A recurrent operator."""

    gates: int
    states: int
    activations: tuple[str, ...]
    # Any attributes that change the step are in the call.
    step: Callable[[_Weights, Call], _Step]
    # The index of the input for peepholes.
    peepholes: int | None = None


def _operator(kind: _Kind) -> Operator:
    def convert(call: Call) -> Sequence[Tensor]:
        directions = _DIRECTIONS[call.get("direction", "forward")]
        results = [
            _over_time(call, kind, index, reverse)
            for index, reverse in enumerate(directions)
        ]
        # Outputs have the direction after the time, and states have it first.
        outputs, *states = zip(*results, strict=True)
        return [torch.stack(outputs, 1), *map(torch.stack, states)][: call.outputs]

    def refusal(form: Form) -> str:
        get = form.attributes.get
        direction = get("direction", "forward")
        count = len(kind.activations) * len(_DIRECTIONS.get(direction, ()))
        activations = get("activations") or kind.activations[:1] * count
        usual = (
            direction in _DIRECTIONS
            and len(activations) >= count
            and all(name in _ACTIVATIONS for name in activations[:count])
            and get("clip") is None
            and not get("input_forget", 0)
            and (kind.peepholes is None or not form.has(kind.peepholes))
        )
        if usual:
            return ""
        return (
            f"is available here in the directions {', '.join(_DIRECTIONS)}, with "
            f"{len(kind.activations)} activations in each, among "
            f"{', '.join(_ACTIVATIONS)}, and without clip, input_forget and peepholes. "
            "Leave these at their defaults."
        )

    return Operator(convert, refusal=refusal)


def _over_time(
    call: Call, kind: _Kind, direction: int, reverse: bool
) -> Sequence[Tensor]:
    """Return the outputs of all steps, and the states after the last of each row.

    Beyond the length of its sequence a row has outputs of 0, and keeps its states.
    """
    step = kind.step(_weights(call, kind, direction), call)
    states: Sequence[Tensor] = [
        call[index][direction]
        if call.has(index)
        else call[0].new_zeros(call[0].shape[1], call[2].shape[-1])
        for index in range(5, 5 + kind.states)
    ]
    lengths = call[4] if call.has(4) else None
    parts = call[0].unbind(0)
    outputs: list[Tensor] = []
    for time in reversed(range(len(parts))) if reverse else range(len(parts)):
        new = step(parts[time], states)
        output = new[0]
        if lengths is not None:
            runs = (time < lengths).unsqueeze(-1)
            new = [
                torch.where(runs, after, before)
                for after, before in zip(new, states, strict=True)
            ]
            output = torch.where(runs, output, torch.zeros_like(output))
        states = new
        outputs.append(output)
    return [torch.stack(outputs[::-1] if reverse else outputs), *states]


def _weights(call: Call, kind: _Kind, direction: int) -> _Weights:
    inputs, recurrent = call[1][direction], call[2][direction]
    size, count = kind.gates * recurrent.shape[-1], len(kind.activations)
    biases = call[3][direction] if call.has(3) else inputs.new_zeros(2 * size)
    names = call.get("activations") or [*kind.activations] * (direction + 1)
    functions = [_ACTIVATIONS[name] for name in names]
    return _Weights(
        *(inputs, recurrent, biases[:size], biases[size:]),
        functions[direction * count : (direction + 1) * count],
    )


def _rnn(weights: _Weights, call: Call) -> _Step:
    offset = weights.offset + weights.recurrent_offset
    (activation,) = weights.activations

    def step(part: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        past = states[0] @ weights.recurrent.t()
        return [activation(part @ weights.inputs.t() + past + offset)]

    return step


def _lstm(weights: _Weights, call: Call) -> _Step:
    offset = weights.offset + weights.recurrent_offset
    gate, of_new, of_cell = weights.activations

    def step(part: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        hidden, cell = states
        gates = part @ weights.inputs.t() + hidden @ weights.recurrent.t() + offset
        into, out, forget, new = gates.chunk(4, -1)
        cell = gate(forget) * cell + gate(into) * of_new(new)
        return [gate(out) * of_cell(cell), cell]

    return step


def _gru(weights: _Weights, call: Call) -> _Step:
    size = weights.recurrent.shape[-1]
    resets_product = bool(call.get("linear_before_reset", 0))
    of_gates, of_new = torch.split(weights.recurrent, [2 * size, size])
    gates_offset, new_offset = torch.split(weights.recurrent_offset, [2 * size, size])
    gate, activation = weights.activations

    def step(part: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        (hidden,) = states
        inputs = part @ weights.inputs.t() + weights.offset
        gates = inputs[:, : 2 * size] + hidden @ of_gates.t() + gates_offset
        update, reset = gate(gates).chunk(2, -1)
        if resets_product:
            past = reset * (hidden @ of_new.t() + new_offset)
        else:
            past = (reset * hidden) @ of_new.t() + new_offset
        new = activation(inputs[:, 2 * size :] + past)
        return [(1 - update) * new + update * hidden]

    return step


ONNX = {
    "GRU": _operator(_Kind(3, 1, ("Sigmoid", "Tanh"), _gru)),
    "LSTM": _operator(_Kind(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm, peepholes=7)),
    "RNN": _operator(_Kind(1, 1, ("Tanh",), _rnn)),
}
