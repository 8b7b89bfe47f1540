"""A node of a graph, and the graphs within nodes, evaluated by torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import torch
from torch import Tensor

from ..errors import popart_exception
from ..tensor_info import TensorInfo
from .call import Call, Operator, Outputs

Values = dict[str, Tensor]

# Types of unsigned integers that a signed integer of 64 bits can hold.
_SHORT = (torch.uint16, torch.uint32)
# Operators that return indices: these have 64 bits for inputs of any type.
_INDICES = ("ArgMax", "ArgMin")


@dataclass(frozen=True, slots=True)
class Node:
    """One use of an operator in a graph."""

    operator: Operator
    kind: str
    # Its own, and then what graphs among its attributes read around it.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    # Any: numbers, strings, lists of these and tensors.
    attributes: Mapping[str, Any]
    version: int

    def constant_inputs(self) -> list[tuple[int, str]]:
        """Return the inputs that have to be constants: their indices and names."""
        named = dict(enumerate(self.inputs))
        return [(i, named[i]) for i in self.operator.constants if named.get(i)]

    def evaluate(
        self, values: Mapping[str, Tensor], training: bool, for_shapes: bool = False
    ) -> Values:
        """Return the outputs, by their names.

        Args:
            values: The inputs, by their names.
            training: Whether this is a step of training.
            for_shapes: Whether only the shapes of the outputs count.

        Raises:
            popart_exception: The inputs do not fit the operator.
        """
        inputs = [values[name] if name else None for name in self.inputs]
        call = Call(inputs, self.attributes, training, len(self.outputs), for_shapes)
        try:
            results = self._convert(call)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise popart_exception(
                f"{self.kind} cannot be computed of "
                f"{', '.join(self.inputs) or 'nothing'}: {error}"
            ) from error
        return dict(zip(self.outputs, results, strict=False))

    def _convert(self, call: Call) -> Sequence[Tensor]:
        """Return the outputs, computed with signed integers where torch has no other.

        It adds, compares and picks none of these types. Results that do not fit wrap
        around, as the type itself does.
        """
        try:
            return _listed(self.operator.convert(call))
        except NotImplementedError:
            short = [
                v.dtype for v in call.inputs if v is not None and v.dtype in _SHORT
            ]
            if not short:
                raise
        wide = [
            value.to(torch.int64)
            if value is not None and value.dtype in _SHORT
            else value
            for value in call.inputs
        ]
        results = _listed(self.operator.convert(replace(call, inputs=wide)))
        if self.kind in _INDICES:
            return results
        return [r.to(short[0]) if r.dtype == torch.int64 else r for r in results]


def _listed(results: Outputs) -> Sequence[Tensor]:
    return [results] if isinstance(results, Tensor) else results


@dataclass(frozen=True, slots=True)
class Body:
    """A graph within a node, such as the body of a loop."""

    # The node's inputs, and the types that the operator declares for them.
    parameters: tuple[str, ...]
    infos: Mapping[str, TensorInfo]
    outputs: tuple[str, ...]
    nodes: tuple[tuple[Node, onnx.NodeProto], ...]
    initial: Mapping[str, Tensor]
    # The tensors around the node that it reads.
    captured: tuple[str, ...]

    def parameter(self, index: int, value: float) -> Tensor:
        """Return a scalar of the type that the graph declares for a parameter."""
        info = self.infos.get(self.parameters[index])
        if info is None:
            return torch.tensor(value)
        return torch.full(info.shape(), value, dtype=info.element_type.torch)

    def run(
        self,
        arguments: Sequence[Tensor],
        outer: Mapping[str, Tensor],
        training: bool,
        for_shapes: bool,
    ) -> list[Tensor]:
        """Return the outputs for some arguments and captured tensors."""
        values = {**outer, **self.initial}
        values.update(zip(self.parameters, arguments, strict=True))
        for node, _ in self.nodes:
            values.update(node.evaluate(values, training, for_shapes))
        return [values[name] for name in self.outputs]
