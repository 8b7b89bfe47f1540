"""Operators that run graphs of their own: If, Loop, Scan and Call.

Any: attributes have the types of Call's, and torch's autograd has no types.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .call import Call, Form, Operator
from .node import Body

Attributes = Mapping[str, Any]


def bodies_of(attributes: Attributes) -> list[Body]:
    """Return the graphs among the attributes of a node."""
    names = ("then_branch", "else_branch", "body", "callee")
    return [attributes[name] for name in names if name in attributes]


def captured_by(attributes: Attributes) -> list[str]:
    """Return the names that the graphs among the attributes of a node capture.

    Their tensors are the last inputs of the node.
    """
    bodies = bodies_of(attributes)
    return list(dict.fromkeys(name for body in bodies for name in body.captured))


class _Reaching(torch.autograd.Function):
    """The identity of a tensor, which gives gradients of 0 to other tensors.

    Inputs of both branches have gradients in every step, as in PopART.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, *others: Tensor) -> Tensor:
        ctx.others = [(other.shape, other.dtype) for other in others]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        zeros = (gradient.new_zeros(size, dtype=dtype) for size, dtype in ctx.others)
        return gradient, *zeros


class _Bodies:
    """The graphs of one use of an operator, and what they read around it."""

    def __init__(self, call: Call) -> None:
        names = captured_by(call.attributes)
        count = len(call.inputs) - len(names)
        self._call = call
        self.arguments = call.inputs[:count]
        self._outer = {
            name: value
            for name, value in zip(names, call.inputs[count:], strict=True)
            if value is not None
        }

    def run(self, name: str, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of the graph that an attribute holds."""
        call = self._call
        body: Body = call.get(name)
        return body.run(arguments, self._outer, call.training, call.for_shapes)

    def reaching(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return outputs that give all inputs gradients: 0 for an unused input."""
        read = [
            value
            for value in self._call.inputs
            if value is not None and value.requires_grad
        ]
        if not read or not torch.is_grad_enabled():
            return list(outputs)
        reach: Any = _Reaching.apply
        return [
            reach(output, *read) if output.is_floating_point() else output
            for output in outputs
        ]


def _if(call: Call) -> list[Tensor]:
    """Return the outputs of the branch that the condition chooses."""
    branch = "then_branch" if bool(call[0]) else "else_branch"
    bodies = _Bodies(call)
    return bodies.reaching(bodies.run(branch, []))


def _call(call: Call) -> list[Tensor]:
    """Return the outputs of a graph for the inputs of the node."""
    bodies = _Bodies(call)
    arguments = [value for value in bodies.arguments if value is not None]
    return bodies.reaching(bodies.run("callee", arguments))


def _loop(call: Call) -> list[Tensor]:
    """Return the tensors that a loop carries on, and stacks of its further outputs.

    A loop that ends before its trip count leaves zeros in the stacks.
    """
    bodies = _Bodies(call)
    body: Body = call.get("body")
    trips, condition = call.inputs[:2]
    most = None if trips is None else int(trips)
    going = body.parameter(1, True) if condition is None else condition
    carried = [value for value in bodies.arguments[2:] if value is not None]
    count = len(carried)
    rows: list[list[Tensor]] = []
    while bool(going) and (most is None or len(rows) < most):
        number = body.parameter(0, len(rows))
        going, *outputs = bodies.run("body", [number, going, *carried])
        carried = outputs[:count]
        rows.append(outputs[count:])
    example = rows[0] if rows else []
    if call.outputs > count and not rows:
        with torch.no_grad():
            unused = bodies.run("body", [body.parameter(0, 0), going, *carried])
        example = unused[1 + count :]
    stacks = [
        _stack([row[index] for row in rows], like, most or 0)
        for index, like in enumerate(example)
    ]
    return bodies.reaching([*carried, *stacks])


def scan_numbers(attributes: Attributes, name: str, count: int) -> list[int]:
    """Return a number for each slice or output of a Scan: 0 where there is none."""
    return [*(attributes.get(name) or ()), *([0] * count)][:count]


def _slices(x: Tensor, axis: int, is_reversed: int) -> Sequence[Tensor]:
    """Return the slices of a tensor; as in PopART, slices of a vector are vectors."""
    parts = x.unbind(axis) if x.dim() > 1 else torch.split(x, 1)
    return parts[::-1] if is_reversed else parts


def _scan(call: Call) -> list[Tensor]:
    """Return the states after the last slices, and the further outputs of all.

    These are joined along an existing axis, as in PopART. ONNX adds an axis.
    """
    bodies = _Bodies(call)
    arguments = [value for value in bodies.arguments if value is not None]
    scanned = int(call.get("num_scan_inputs"))
    count = len(arguments) - scanned
    states, outputs = arguments[:count], call.outputs - count
    slices = map(
        _slices,
        arguments[count:],
        scan_numbers(call.attributes, "scan_input_axes", scanned),
        scan_numbers(call.attributes, "scan_input_directions", scanned),
    )
    rows: list[list[Tensor]] = []
    for parts in zip(*slices, strict=True):
        results = bodies.run("body", [*states, *parts])
        states = results[:count]
        rows.append(results[count:])
    axes = scan_numbers(call.attributes, "scan_output_axes", outputs)
    directions = scan_numbers(call.attributes, "scan_output_directions", outputs)
    joined = [
        torch.cat([row[index] for row in (rows[::-1] if is_reversed else rows)], axis)
        for index, (axis, is_reversed) in enumerate(zip(axes, directions, strict=True))
    ]
    return bodies.reaching([*states, *joined])


def _stack(rows: list[Tensor], like: Tensor, size: int) -> Tensor:
    """Return rows in one tensor of that size, padded with zeros."""
    if not size:
        return like.new_zeros([0, *like.shape])
    return torch.stack(rows + [torch.zeros_like(like)] * (size - len(rows)))


def _unequal(what: str, number: int, attribute: str, other: int) -> str:
    return (
        f"has {number} {what}, but its {attribute} has {other}. Give both the same "
        "number."
    )


def _refuse_if(form: Form) -> str:
    for name in ("then_branch", "else_branch"):
        number = len(form.attributes[name].outputs)
        if number != form.outputs:
            return _unequal("outputs", form.outputs, name, number)
    return ""


def _refuse_others_than(form: Form, attribute: str) -> str:
    """Return why a graph does not fit these inputs and outputs."""
    body: Body = form.attributes[attribute]
    if len(body.parameters) != len(form.inputs):
        number = len(body.parameters)
        return _unequal("inputs", len(form.inputs), attribute, number)
    if len(body.outputs) != form.outputs:
        return _unequal("outputs", form.outputs, attribute, len(body.outputs))
    return ""


def _refuse_loop(form: Form) -> str:
    body: Body = form.attributes["body"]
    if len(form.inputs) < 2 or "" in form.inputs[2:]:
        return (
            "takes the trip count, the condition, and the tensors that it carries "
            "from one iteration to the next; only the first two can be left out, by "
            "empty names."
        )
    if len(body.parameters) != len(form.inputs):
        number = len(body.parameters)
        return _unequal("inputs", len(form.inputs), "body", number)
    # The first output of the body is the condition for the next iteration.
    if len(body.outputs) != form.outputs + 1:
        return (
            f"has {form.outputs} outputs, but its body has {len(body.outputs)}. A body "
            "has one more: the condition, which is its first one."
        )
    if form.outputs < len(form.inputs) - 2:
        return (
            f"has {form.outputs} outputs, but carries {len(form.inputs) - 2} tensors. "
            "Give it an output for each of them."
        )
    return ""


def _refuse_scan(form: Form) -> str:
    if form.version < 9:
        return "is available here in the versions 9 to 11 of ONNX's operators. Use one."
    scanned = int(form.attributes["num_scan_inputs"])
    joined = form.outputs - len(form.inputs) + scanned
    if not 0 < scanned <= len(form.inputs) or joined < 0:
        return (
            f"has {len(form.inputs)} inputs and {form.outputs} outputs, but "
            f"num_scan_inputs is {scanned}. Give it one input or more to scan, and an "
            "output for each of the others."
        )
    return _refuse_others_than(form, "body")


ONNX = {
    "If": Operator(_if, refusal=_refuse_if),
    "Loop": Operator(_loop, refusal=_refuse_loop),
    "Scan": Operator(_scan, refusal=_refuse_scan),
}
GRAPHCORE = {
    "Call": Operator(_call, refusal=lambda form: _refuse_others_than(form, "callee"))
}
