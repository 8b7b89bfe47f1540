"""A node of a graph, and the graphs within nodes, evaluated by torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from ..errors import popart_exception
from ..tensor_info import TensorInfo
from .call import Call, Operator

Values = dict[str, torch.Tensor]


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

    def evaluate(
        self,
        values: Mapping[str, torch.Tensor],
        training: bool,
        for_shapes: bool = False,
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
            results = self.operator.convert(call)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise popart_exception(
                f"{self.kind} cannot be computed of "
                f"{', '.join(self.inputs) or 'nothing'}: {error}"
            ) from error
        if isinstance(results, torch.Tensor):
            results = [results]
        return dict(zip(self.outputs, results, strict=False))


@dataclass(frozen=True, slots=True)
class Body:
    """A graph within a node, such as the body of a loop."""

    # What the node hands it, and the types that it declares for these.
    parameters: tuple[str, ...]
    infos: Mapping[str, TensorInfo]
    outputs: tuple[str, ...]
    nodes: tuple[tuple[Node, onnx.NodeProto], ...]
    initial: Mapping[str, torch.Tensor]
    # The tensors around the node that it reads.
    captured: tuple[str, ...]

    def parameter(self, index: int, value: float) -> torch.Tensor:
        """Return a scalar of the type that the graph declares for a parameter."""
        info = self.infos.get(self.parameters[index])
        if info is None:
            return torch.tensor(value)
        return torch.full(info.shape(), value, dtype=info.element_type.torch)

    def run(
        self,
        arguments: Sequence[torch.Tensor],
        outer: Mapping[str, torch.Tensor],
        training: bool,
        for_shapes: bool,
    ) -> list[torch.Tensor]:
        """Return the outputs for some arguments and captured tensors."""
        values = {**outer, **self.initial}
        values.update(zip(self.parameters, arguments, strict=True))
        for node, _ in self.nodes:
            values.update(node.evaluate(values, training, for_shapes))
        return [values[name] for name in self.outputs]
