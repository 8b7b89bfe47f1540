"""Recurrent operators."""

from collections.abc import Callable, Sequence

import torch

from .call import Call, Form, Operator

_Refusal = Callable[[Form], str]
# Takes the inputs of a time step and the states, and returns the new states, of which
# the first is the output of the step.
_Step = Callable[[torch.Tensor, Sequence[torch.Tensor]], list[torch.Tensor]]


def _refusal(activations: Sequence[str], peepholes: int | None = None) -> _Refusal:
    """Return what refuses all forms of an operator but one.

    Args:
        activations: Those of that form, which are the defaults.
        peepholes: The index of the input for peepholes.
    """

    def refusal(form: Form) -> str:
        get = form.attributes.get
        unusual = (
            get("direction", "forward") != "forward"
            or get("activations") not in (None, list(activations))
            or get("clip") is not None
            or get("input_forget", 0)
            or (peepholes is not None and form.has(peepholes))
        )
        if not unusual:
            return ""
        return (
            "is available here in one form: forward, with the activations "
            f"{', '.join(activations[:-1])} and {activations[-1]}, and without clip, "
            "input_forget and peepholes. Leave these at their defaults."
        )

    return refusal


def _over_time(
    call: Call, step: _Step, states: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Return the outputs of all steps, and the states after the last of each row.

    After the length of its sequence a row has outputs of 0, and keeps its states.
    """
    lengths, outputs = call.optional(4), []
    for time, part in enumerate(call[0].unbind(0)):
        new = step(part, states)
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
    results = [torch.stack(outputs).unsqueeze(1), *(state[None] for state in states)]
    return results[: call.outputs]


def _initial(call: Call, index: int) -> torch.Tensor:
    """Return the initial state that an input gives, or zeros."""
    if call.has(index):
        return call[index][0]
    return call[0].new_zeros(call[0].shape[1], call[2].shape[-1])


def _biases(call: Call, gates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the biases of the inputs and of the recurrence."""
    weights = call[1]
    size = gates * call[2].shape[-1]
    both = call[3][0] if call.has(3) else weights.new_zeros(2 * size)
    return both[:size], both[size:]


def _lstm(call: Call) -> Sequence[torch.Tensor]:
    """Return all hidden states, and the last hidden and cell state."""
    weights, recurrent = call[1][0], call[2][0]
    offset = torch.add(*_biases(call, 4))

    def step(part: torch.Tensor, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        hidden, cell = states
        gates = part @ weights.t() + hidden @ recurrent.t() + offset
        into, out, forget, new = gates.chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
        return [torch.sigmoid(out) * torch.tanh(cell), cell]

    return _over_time(call, step, [_initial(call, 5), _initial(call, 6)])


def _gru(call: Call) -> Sequence[torch.Tensor]:
    """Return all hidden states, and the last one."""
    weights, recurrent = call[1][0], call[2][0]
    offset, recurrent_offset = _biases(call, 3)
    size = recurrent.shape[-1]
    resets_product = bool(call.get("linear_before_reset", 0))
    of_gates, of_new = recurrent[: 2 * size].t(), recurrent[2 * size :].t()
    gates_offset, new_offset = (
        recurrent_offset[: 2 * size],
        recurrent_offset[2 * size :],
    )

    def step(part: torch.Tensor, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        (hidden,) = states
        inputs = part @ weights.t() + offset
        gates = inputs[:, : 2 * size] + hidden @ of_gates + gates_offset
        update, reset = torch.sigmoid(gates).chunk(2, -1)
        if resets_product:
            past = reset * (hidden @ of_new + new_offset)
        else:
            past = (reset * hidden) @ of_new + new_offset
        new = torch.tanh(inputs[:, 2 * size :] + past)
        return [(1 - update) * new + update * hidden]

    return _over_time(call, step, [_initial(call, 5)])


ONNX = {
    "GRU": Operator(_gru, refusal=_refusal(["Sigmoid", "Tanh"])),
    "LSTM": Operator(_lstm, refusal=_refusal(["Sigmoid", "Tanh", "Tanh"], 7)),
}
