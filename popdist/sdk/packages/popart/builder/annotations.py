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
from ..errors import popart_exception
from ..settings import TensorLocation

VIRTUAL_GRAPH = "__ipu_number"
PIPELINE_STAGE = "__pipeline_stage"
EXECUTION_PHASE = "__execution_phase"
RECOMPUTE = "__recompute_output"
PRIORITY = "__schedule_priority"
OUTLINE = "__outline_attribute"
LOCATION = "__output_tensor_location"
COMM_GROUP = "__collectiveCommGroup"
EXCLUDED = "__exclude_patterns"
MEMORY = "__available_memory_proportion"
PARTIALS = "__partials_type"
SERIALIZE = "__serialize_matmul_mode"
INPLACE = "__inplace_ops"

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


class Annotations:
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

    def _noting(self, name: str, value: Any) -> AbstractContextManager[None]:
        """Return a `with` block that notes an attribute. It can be entered again."""
        return _Noting(self, name, value)

    def _note(
        self, name: str, first: Any, value: Any
    ) -> AbstractContextManager[None] | None:
        """Note an attribute on the nodes that make `first`, or in a `with` block."""
        if value is None:
            return self._noting(name, first)
        for output in _names(first):
            _set(self._node(output), name, value)
        return None

    def _place(
        self, attribute: str, nodeOutputNames: Any = None, value: int | None = None
    ) -> AbstractContextManager[None] | None:
        """Note a number on nodes, or in a `with` block: the only argument, or 0."""
        if nodeOutputNames is None:
            nodeOutputNames, value = value or 0, None
        elif not isinstance(nodeOutputNames, int) and value is None:
            value = 0
        return self._note(attribute, nodeOutputNames, value)

    # The IPU, the stage of a pipeline and the execution phase: `virtualGraph(0)` in a
    # `with` block, or `virtualGraph(outputs, 0)`.
    virtualGraph = partialmethod(_place, VIRTUAL_GRAPH)
    pipelineStage = partialmethod(_place, PIPELINE_STAGE)
    executionPhase = partialmethod(_place, EXECUTION_PHASE)

    def recomputeOutput(
        self, nodeOutputNames: Any = None, value: RecomputeType | None = None
    ) -> AbstractContextManager[None] | None:
        """Note on nodes whether they are recomputed, or in a `with` block."""
        if isinstance(nodeOutputNames, RecomputeType):
            nodeOutputNames, value = None, nodeOutputNames
        kind = int(value or RecomputeType.Undefined)
        if nodeOutputNames is None:
            return self._noting(RECOMPUTE, kind)
        return self._note(RECOMPUTE, nodeOutputNames, kind)

    def recomputeOutputInBackwardPass(
        self, nodeOutputName: Outputs, value: RecomputeType = RecomputeType.Recompute
    ) -> None:
        """Note on nodes whether they are recomputed."""
        self._note(RECOMPUTE, nodeOutputName, int(value))

    def checkpointOutput(self, nodeOutputNames: Outputs) -> list[str]:
        """Return the tensors: all of them are kept for the backward pass anyway."""
        return _names(nodeOutputNames)

    def outputTensorLocation(
        self, nodeOutputNames: Any = None, value: TensorLocation | None = None
    ) -> AbstractContextManager[None] | None:
        """Note on nodes in which memory their outputs are, or in a `with` block."""
        if isinstance(nodeOutputNames, TensorLocation):
            nodeOutputNames, value = None, nodeOutputNames
        numbers = (value or TensorLocation()).numbers()
        if nodeOutputNames is None:
            return self._noting(LOCATION, numbers)
        return self._note(LOCATION, nodeOutputNames, numbers)

    def schedulePriority(self, value: float) -> AbstractContextManager[None]:
        """Note a priority in a `with` block."""
        return self._noting(PRIORITY, float(value))

    def outlineAttributes(self, pairs: dict[Any, Any]) -> AbstractContextManager[None]:
        """Note pairs that only like parts of a graph share in a `with` block."""
        flat = [str(part) for pair in sorted(pairs.items()) for part in pair]
        return self._noting(OUTLINE, flat)

    def commGroup(
        self, type: int = 0, groupSize: int = 0
    ) -> AbstractContextManager[None]:
        """Note a group of replicas in a `with` block."""
        return self._noting(COMM_GROUP, [int(type), int(groupSize)])

    def excludePatterns(
        self, nodeOutputName: Outputs, patternNames: Sequence[str]
    ) -> None:
        """Note patterns that are not applied to nodes."""
        self._note(EXCLUDED, nodeOutputName, list(patternNames))

    def setAvailableMemoryProportion(
        self, nodeOutputName: Outputs, availableMemoryProportion: float
    ) -> None:
        """Note how much memory nodes may use."""
        self._note(MEMORY, nodeOutputName, float(availableMemoryProportion))

    def setPartialsType(self, nodeOutputName: Outputs, partialsType: str) -> None:
        """Note the type of partial sums on nodes."""
        self._note(PARTIALS, nodeOutputName, partialsType)

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
        self._note(SERIALIZE, nodeOutputName, mode)

    def setInplacePreferences(
        self, nodeOutputName: Outputs, prefs: dict[str, float]
    ) -> None:
        """Note which operators may work in place."""
        self._note(INPLACE, nodeOutputName, list(prefs))

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
    for attribute in node.attribute:
        if attribute.name == name:
            value = onnx.helper.get_attribute_value(attribute)
            if isinstance(value, bytes):
                return value.decode()
            if isinstance(value, str | int | float):
                return value
            return [v.decode() if isinstance(v, bytes) else v for v in value]
    return default


def _set(node: onnx.NodeProto, name: str, value: Any) -> None:
    _remove(node, name)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def _remove(node: onnx.NodeProto, name: str) -> None:
    others = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(others)
