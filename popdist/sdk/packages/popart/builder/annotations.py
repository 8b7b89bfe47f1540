"""What a builder notes on nodes: IPUs, stages and attributes of all kinds.

Where a node runs changes no result here; the notes go into the model, as PopART's do.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
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

# What names one node: one of its outputs, or all of them.
Outputs = str | Iterable[str]


def _names(outputs: Outputs) -> list[str]:
    return [outputs] if isinstance(outputs, str) else list(outputs)


class _Noting:
    """A `with` block that notes an attribute; it can be entered again, as PopART's."""

    # Any: as in Annotations.
    def __init__(self, annotations: "Annotations", name: str, value: Any) -> None:
        self._annotations, self._name, self._value = annotations, name, value
        # What was noted before each block that is not left yet.
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
        # Any: attributes are numbers, strings and lists.
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

    # Any: as in __init__().
    def _noting(self, name: str, value: Any) -> AbstractContextManager[None]:
        return _Noting(self, name, value)

    # Any: as in __init__().
    def _note(
        self, name: str, first: Any, value: Any
    ) -> AbstractContextManager[None] | None:
        """Note an attribute on the nodes that make `first`, or in a `with` block."""
        if value is None:
            return self._noting(name, first)
        for output in _names(first):
            _set(self._node(output), name, value)
        return None

    # Any: `virtualGraph(0)`, or `virtualGraph(outputs, 0)`.
    def virtualGraph(self, nodeOutputNames: Any = None, value: Any = None) -> Any:
        """Note an IPU on nodes, or in a `with` block."""
        return self._placed(VIRTUAL_GRAPH, nodeOutputNames, value)

    # Any: as virtualGraph().
    def pipelineStage(self, nodeOutputNames: Any = None, value: Any = None) -> Any:
        """Note a stage of a pipeline on nodes, or in a `with` block."""
        return self._placed(PIPELINE_STAGE, nodeOutputNames, value)

    # Any: as virtualGraph().
    def executionPhase(self, nodeOutputNames: Any = None, value: Any = None) -> Any:
        """Note an execution phase on nodes, or in a `with` block."""
        return self._placed(EXECUTION_PHASE, nodeOutputNames, value)

    # Any: as virtualGraph().
    def _placed(self, attribute: str, first: Any, value: Any) -> Any:
        if first is None:
            first, value = (0 if value is None else value), None
        elif not isinstance(first, int) and value is None:
            value = 0
        return self._note(attribute, first, value)

    # Any: as virtualGraph().
    def recomputeOutput(self, nodeOutputNames: Any = None, value: Any = None) -> Any:
        """Note on nodes whether they are recomputed, or in a `with` block."""
        if isinstance(nodeOutputNames, RecomputeType) or nodeOutputNames is None:
            kind = value if nodeOutputNames is None else nodeOutputNames
            return self._noting(RECOMPUTE, int(kind or RecomputeType.Undefined))
        kind = RecomputeType.Undefined if value is None else value
        return self._note(RECOMPUTE, nodeOutputNames, int(kind))

    def recomputeOutputInBackwardPass(
        self, nodeOutputName: Outputs, value: RecomputeType = RecomputeType.Recompute
    ) -> None:
        """Note on nodes whether they are recomputed."""
        self._note(RECOMPUTE, _names(nodeOutputName), int(value))

    def checkpointOutput(self, nodeOutputNames: Outputs) -> list[str]:
        """Return the tensors: all of them are kept for the backward pass anyway."""
        return _names(nodeOutputNames)

    # Any: `outputTensorLocation(location)`, or with outputs before it.
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

    # Any: keys and values are whatever has a str().
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
        self._note(EXCLUDED, _names(nodeOutputName), list(patternNames))

    def setAvailableMemoryProportion(
        self, nodeOutputName: Outputs, availableMemoryProportion: float
    ) -> None:
        """Note how much memory nodes may use."""
        names = _names(nodeOutputName)
        self._note(MEMORY, names, float(availableMemoryProportion))

    def setPartialsType(self, nodeOutputName: Outputs, partialsType: str) -> None:
        """Note the type of partial sums on nodes."""
        self._note(PARTIALS, _names(nodeOutputName), partialsType)

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
        self._note(SERIALIZE, _names(nodeOutputName), mode)

    def setInplacePreferences(
        self, nodeOutputName: Outputs, prefs: dict[str, float]
    ) -> None:
        """Note which operators may work in place."""
        self._note(INPLACE, _names(nodeOutputName), list(prefs))

    def getVirtualGraph(self, nodeOutputNames: Outputs | None = None) -> int:
        """Return the IPU of a node, or that of the `with` block."""
        return self._number(VIRTUAL_GRAPH, nodeOutputNames)

    def getPipelineStage(self) -> int:
        """Return the stage of the `with` block."""
        return self._number(PIPELINE_STAGE, None)

    def getExecutionPhase(self) -> int:
        """Return the execution phase of the `with` block."""
        return self._number(EXECUTION_PHASE, None)

    def getRecomputeOutputInBackwardPass(self, nodeOutputNames: Outputs) -> bool:
        """Return whether a node is recomputed."""
        return bool(_get(self._node(nodeOutputNames), RECOMPUTE, 0))

    def hasVirtualGraph(self) -> bool:
        """Return whether the `with` block notes an IPU."""
        return VIRTUAL_GRAPH in self.common

    def hasPipelineStage(self) -> bool:
        """Return whether the `with` block notes a stage."""
        return PIPELINE_STAGE in self.common

    def hasExecutionPhase(self) -> bool:
        """Return whether the `with` block notes an execution phase."""
        return EXECUTION_PHASE in self.common

    def _number(self, name: str, outputs: Outputs | None) -> int:
        value = (
            self.common.get(name)
            if outputs is None
            else _get(self._node(outputs), name, None)
        )
        if value is None:
            raise popart_exception(f"There is no attribute {name}.")
        return int(value)

    # Any: as in __init__().
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

    # Any: as in __init__().
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


# Any: as in Annotations.
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


# Any: as in Annotations.
def _set(node: onnx.NodeProto, name: str, value: Any) -> None:
    _remove(node, name)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def _remove(node: onnx.NodeProto, name: str) -> None:
    others = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(others)
