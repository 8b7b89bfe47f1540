"""The attributes that a builder notes on nodes: IPUs, stages and others.

Where a node runs changes no result here; the notes go into the model, as PopART's do.
Any: attributes are numbers, strings and lists, and methods take them in several orders.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partialmethod
from typing import Any

import onnx

from ..enums import RecomputeType
from ..errors import Emulated, popart_exception
from ..nodes import value_of
from ..settings import TensorLocation

VIRTUAL_GRAPH = "__ipu_number"
PIPELINE_STAGE = "__pipeline_stage"
EXECUTION_PHASE = "__execution_phase"
RECOMPUTE = "__recompute_output"
LOCATION = "__output_tensor_location"
PARTIALS = "__partials_type"

# The name of a node: one of its outputs, or all of them.
Outputs = str | Iterable[str]


def _names(outputs: Outputs) -> list[str]:
    return [outputs] if isinstance(outputs, str) else list(outputs)


class _Noting:
    """A `with` block that notes an attribute. It can be entered again, as PopART's."""

    def __init__(self, annotations: "Annotations", name: str, value: Any) -> None:
        self._annotations, self._name, self._value = annotations, name, value
        # The attributes before each block that is still entered.
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        common = self._annotations.common
        self._before.append(common)
        self._annotations.common = {**common, self._name: self._value}

    def __exit__(self, *error: object) -> None:
        self._annotations.common = self._before.pop()


class Annotations(Emulated):
    """The part of a builder that notes attributes on nodes."""

    def __init__(self) -> None:
        self.common: dict[str, Any] = {}
        self._nodes: dict[str, onnx.NodeProto] = {}

    def note_outputs(self, node: onnx.NodeProto) -> None:
        """Remember which node makes some tensors."""
        self._nodes.update(dict.fromkeys(node.output, node))

    def _node(self, outputs: Outputs) -> onnx.NodeProto:
        names = _names(outputs)
        nodes = {id(self._nodes[n]): self._nodes[n] for n in names if n in self._nodes}
        if len(nodes) != 1 or not all(name in self._nodes for name in names):
            raise popart_exception(
                f"Could not find a node with outputs {', '.join(names)}."
            )
        return next(iter(nodes.values()))

    def _note(self, outputs: Outputs, name: str, value: Any) -> None:
        """Note an attribute on the nodes that make some tensors."""
        for output in _names(outputs):
            _set(self._node(output), name, value)

    def _place(
        self,
        attribute: str,
        default: Any,
        nodeOutputNames: Any = None,
        value: Any = None,
    ) -> AbstractContextManager[None] | None:
        """Note an attribute on nodes, or in a `with` block if the value comes alone."""
        if isinstance(nodeOutputNames, int | TensorLocation):
            nodeOutputNames, value = None, nodeOutputNames
        value = default if value is None else value
        if isinstance(value, TensorLocation):
            value = value.numbers()
        if nodeOutputNames is None:
            return _Noting(self, attribute, value)
        self._note(nodeOutputNames, attribute, value)
        return None

    # The IPU, the stage of a pipeline, the execution phase, the recomputation and the
    # memory of outputs: `virtualGraph(0)` in a `with` block, or
    # `virtualGraph(outputs, 0)`.
    virtualGraph = partialmethod(_place, VIRTUAL_GRAPH, 0)
    pipelineStage = partialmethod(_place, PIPELINE_STAGE, 0)
    executionPhase = partialmethod(_place, EXECUTION_PHASE, 0)
    recomputeOutput = partialmethod(_place, RECOMPUTE, 0)
    outputTensorLocation = partialmethod(_place, LOCATION, TensorLocation())

    def recomputeOutputInBackwardPass(
        self, nodeOutputName: Outputs, value: RecomputeType = RecomputeType.Recompute
    ) -> None:
        """Note on nodes whether they are recomputed."""
        self._note(nodeOutputName, RECOMPUTE, int(value))

    def checkpointOutput(self, nodeOutputNames: Outputs) -> list[str]:
        """Return the tensors: all of them are kept for the backward pass anyway."""
        return _names(nodeOutputNames)

    def schedulePriority(self, value: float) -> AbstractContextManager[None]:
        """Note a priority in a `with` block."""
        return _Noting(self, "__schedule_priority", float(value))

    def outlineAttributes(self, pairs: dict[Any, Any]) -> AbstractContextManager[None]:
        """Note pairs that only like parts of a graph share in a `with` block."""
        flat = [str(part) for pair in sorted(pairs.items()) for part in pair]
        return _Noting(self, "__outline_attribute", flat)

    def commGroup(
        self, type: int = 0, groupSize: int = 0
    ) -> AbstractContextManager[None]:
        """Note a group of replicas in a `with` block."""
        return _Noting(self, "__collectiveCommGroup", [int(type), int(groupSize)])

    def excludePatterns(
        self, nodeOutputName: Outputs, patternNames: Sequence[str]
    ) -> None:
        """Note patterns that are not applied to nodes."""
        self._note(nodeOutputName, "__exclude_patterns", list(patternNames))

    def setAvailableMemoryProportion(
        self, nodeOutputName: Outputs, availableMemoryProportion: float
    ) -> None:
        """Note how much memory nodes may use."""
        share = float(availableMemoryProportion)
        self._note(nodeOutputName, "__available_memory_proportion", share)

    def setPartialsType(self, nodeOutputName: Outputs, partialsType: str) -> None:
        """Note the type of partial sums on nodes."""
        self._note(nodeOutputName, PARTIALS, partialsType)

    def getPartialsType(self, nodeOutputName: Outputs) -> str:
        """Return the type of partial sums of a node."""
        return str(_get(self._node(nodeOutputName), PARTIALS, "FLOAT"))

    def setSerializeMatMul(
        self,
        nodeOutputName: Outputs,
        mode: str,
        factor: int = 0,
        keep_precision: bool = False,
    ) -> None:
        """Note into which parts a matrix product is divided."""
        self._note(nodeOutputName, "__serialize_matmul_mode", mode)

    def setInplacePreferences(
        self, nodeOutputName: Outputs, prefs: dict[str, float]
    ) -> None:
        """Note which operators may work in place."""
        self._note(nodeOutputName, "__inplace_ops", list(prefs))

    def getVirtualGraph(self, nodeOutputNames: Outputs | None = None) -> int:
        """Return the IPU of a node or of the `with` block."""
        return self._number(VIRTUAL_GRAPH, nodeOutputNames)

    def getRecomputeOutputInBackwardPass(self, nodeOutputNames: Outputs) -> bool:
        """Return whether a node is recomputed."""
        return bool(_get(self._node(nodeOutputNames), RECOMPUTE, 0))

    def _number(self, name: str, outputs: Outputs | None = None) -> int:
        """Return the number of a node or of the `with` block."""
        value = (
            self.common.get(name)
            if outputs is None
            else _get(self._node(outputs), name, None)
        )
        if value is None:
            raise popart_exception(f"There is no attribute {name}.")
        return int(value)

    def _has(self, name: str) -> bool:
        """Return whether the `with` block notes an attribute."""
        return name in self.common

    getPipelineStage = partialmethod(_number, PIPELINE_STAGE)
    getExecutionPhase = partialmethod(_number, EXECUTION_PHASE)
    hasVirtualGraph = partialmethod(_has, VIRTUAL_GRAPH)
    hasPipelineStage = partialmethod(_has, PIPELINE_STAGE)
    hasExecutionPhase = partialmethod(_has, EXECUTION_PHASE)

    def addNodeAttribute(
        self, attributeName: str, attributeValue: Any, nodeOutputNames: Outputs
    ) -> None:
        """Note an attribute on a node that has none of this name."""
        node = self._node(nodeOutputNames)
        if _get(node, attributeName, None) is not None:
            raise popart_exception(f"Node already has attribute {attributeName}.")
        _set(node, attributeName, attributeValue)

    def nodeHasAttribute(self, attributeName: str, nodeOutputNames: Outputs) -> bool:
        """Return whether a node has an attribute."""
        return _get(self._node(nodeOutputNames), attributeName, None) is not None

    def _attribute(self, attributeName: str, nodeOutputNames: Outputs) -> Any:
        value = _get(self._node(nodeOutputNames), attributeName, None)
        if value is None:
            raise popart_exception(f"Node does not have an attribute {attributeName}.")
        return value

    getInt64NodeAttribute = _attribute
    getInt64VectorNodeAttribute = _attribute
    getFloatNodeAttribute = _attribute
    getFloatVectorNodeAttribute = _attribute
    getStringNodeAttribute = _attribute
    getStringVectorNodeAttribute = _attribute

    def getAllNodeAttributeNames(self, nodeOutputNames: Outputs) -> list[str]:
        """Return the names of a node's attributes."""
        return [attribute.name for attribute in self._node(nodeOutputNames).attribute]

    def removeNodeAttribute(self, attributeName: str, nodeOutputNames: Outputs) -> None:
        """Remove an attribute from a node."""
        self._attribute(attributeName, nodeOutputNames)
        _remove(self._node(nodeOutputNames), attributeName)


def _get(node: onnx.NodeProto, name: str, default: Any) -> Any:
    values = (value_of(a) for a in node.attribute if a.name == name)
    return next(values, default)


def _set(node: onnx.NodeProto, name: str, value: Any) -> None:
    _remove(node, name)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def _remove(node: onnx.NodeProto, name: str) -> None:
    others = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(others)
