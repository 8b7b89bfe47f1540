"""Recurrent operators."""

from collections.abc import Sequence

import torch

from .call import Call, Form, Operator


def _refusal(form: Form) -> str:
    get = form.attributes.get
    unusual = (
        get("direction", "forward") != "forward"
        or get("activations") not in (None, ["Sigmoid", "Tanh", "Tanh"])
        or get("clip") is not None
        or get("input_forget", 0)
        or form.has(4)
        or form.has(7)
    )
    if not unusual:
        return ""
    return (
        "is available here in one form: forward, with the activations Sigmoid, Tanh "
        "and Tanh, and without clip, input_forget, peepholes and sequence_lens. Leave "
        "these at their defaults."
    )


def _lstm(call: Call) -> Sequence[torch.Tensor]:
    """Return all hidden states, and the last hidden and cell state."""
    x, weights, recurrent = call[0], call[1][0], call[2][0]
    hidden_size = recurrent.shape[-1]
    bias = call[3][0] if call.has(3) else weights.new_zeros(8 * hidden_size)
    state = x.new_zeros(x.shape[1], hidden_size)
    hidden = call[5][0] if call.has(5) else state
    cell = call[6][0] if call.has(6) else state
    offset = bias[: 4 * hidden_size] + bias[4 * hidden_size :]
    steps = []
    for part in x.unbind(0):
        gates = part @ weights.t() + hidden @ recurrent.t() + offset
        into, out, forget, new = gates.chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
        hidden = torch.sigmoid(out) * torch.tanh(cell)
        steps.append(hidden)
    results = [torch.stack(steps).unsqueeze(1), hidden[None], cell[None]]
    return results[: call.outputs]


ONNX = {"LSTM": Operator(_lstm, refusal=_refusal)}
