"""A model of ONNX with the shapes of all of its tensors, ready to be evaluated."""

import os
from collections.abc import Container, Iterable
from dataclasses import astuple, replace

import onnx
from google.protobuf.message import DecodeError

from .enums import CommGroupType, VariableRetrievalMode
from .errors import popart_exception
from .inference import Inference
from .nodes import info_of, node_of, tensor_of
from .operators import (
    LIKELIHOOD_OF_SCORES,
    NEWEST_VERSION,
    OLDEST_VERSION,
    ONNX_DOMAINS,
    Node,
)
from .settings import CommGroup, VariableSettings
from .tensor_info import TensorInfo


def load_model(model: bytes | str | os.PathLike[str]) -> onnx.ModelProto:
    """Return a model from its serialised form or from a file.

    Raises:
        popart_exception: It is neither.
    """
    try:
        if isinstance(model, bytes):
            return onnx.load_model_from_string(model)
        return onnx.load(os.fspath(model))
    except (DecodeError, OSError) as error:
        source = "these bytes" if isinstance(model, bytes) else repr(model)
        raise popart_exception(
            f"Failed to load a ModelProto from {source}: {error}. Give the bytes that "
            "Builder.getModelProto() returns, or the path of an ONNX file."
        ) from None


def version_of(model: onnx.ModelProto) -> int:
    """Return the version of the operators' set of ONNX that a model uses.

    Raises:
        popart_exception: PopART does not know it.
    """
    versions = [v.version for v in model.opset_import if v.domain in ONNX_DOMAINS]
    version = versions[0] if versions else NEWEST_VERSION
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise popart_exception(
            f"The model uses version {version} of ONNX's operators, but PopART knows "
            f"those from {OLDEST_VERSION} to {NEWEST_VERSION}. Export it with an "
            "opset_version among them."
        )
    return version


# The key of a weight's settings among the properties of a model.
_SETTINGS = "VariableSettings"


def note_settings(
    model: onnx.ModelProto, name: str, settings: VariableSettings
) -> None:
    """Store in a model which replicas share a value of a weight."""
    numbers = (
        *astuple(settings.getSharedVariableDomain()),
        settings.getRetrievalMode(),
    )
    value = " ".join(str(int(number)) for number in numbers)
    model.metadata_props.add(key=f"{_SETTINGS}/{name}", value=value)


def _settings_in(model: onnx.ModelProto) -> dict[str, VariableSettings]:
    """Return the settings that a model stores, by the names of the weights."""
    found = {}
    for prop in model.metadata_props:
        prefix, _, name = prop.key.partition("/")
        if prefix == _SETTINGS:
            kind, size, mode = map(int, prop.value.split())
            group = CommGroup(CommGroupType(kind), size)
            found[name] = VariableSettings(group, VariableRetrievalMode(mode))
    return found


class InputShapeInfo:
    """The types and shapes of inputs that a model does not know."""

    def __init__(self) -> None:
        self._infos: dict[str, TensorInfo] = {}

    def add(self, name: str, info: TensorInfo) -> None:
        """Set the type and shape of an input."""
        self._infos[name] = info

    def get(self, name: str) -> TensorInfo:
        """Return the type and shape of an input."""
        return self._infos[name]

    def has(self, name: str) -> bool:
        """Return whether the type and shape of an input are known."""
        return name in self._infos


class Graph:
    """A model, ready to be evaluated."""

    def __init__(
        self, model: onnx.ModelProto, shapes: InputShapeInfo, training: bool
    ) -> None:
        """Convert a model, and find the shapes of all of its tensors.

        Raises:
            popart_exception: An operator is not available, or shapes do not fit.
        """
        self.model = model
        self.training = training
        version = version_of(model)
        initial = {i.name: tensor_of(i) for i in model.graph.initializer}
        # Weights, in the order of the model; integers are constants of the graph.
        self.weights = {
            name: value for name, value in initial.items() if value.is_floating_point()
        }
        # For the weights that have a row for each group of replicas.
        self.grouped = _settings_in(model)
        self.inputs: dict[str, TensorInfo] = {}
        for value in model.graph.input:
            if value.name not in initial:
                self.inputs[value.name] = _input_info(value, shapes)
        self.nodes = [node_of(node, version) for node in model.graph.node]
        # The tensors that are equal for all micro-batches.
        self.constants = {n: v for n, v in initial.items() if n not in self.weights}
        self.infos: dict[str, TensorInfo] = {}
        self._infer()

    def _infer(self) -> None:
        """Find the types and shapes of all tensors, and the constants among them."""
        infos = {
            name: TensorInfo.of(value[0] if name in self.grouped else value)
            for name, value in self.weights.items()
        }
        inference = Inference(infos, self.constants)
        inference.infos.update(self.inputs)
        for node, proto in zip(self.nodes, self.model.graph.node, strict=True):
            inference.add(node, proto)
        self.constants, self.infos = inference.constants, inference.infos

    def nodes_for(
        self, names: Iterable[str], differentiated: Container[str] = ()
    ) -> list[Node]:
        """Return the nodes that some tensors depend on, in their order.

        Args:
            names: The tensors.
            differentiated: Tensors that need gradients themselves.
        """
        needed, nodes = set(names), []
        for node in reversed(self._with_exact_losses(differentiated)):
            if needed.intersection(node.outputs) and not self.constants.keys() >= set(
                node.outputs
            ):
                needed.update(node.inputs)
                nodes.append(node)
        return nodes[::-1]

    def _with_exact_losses(self, differentiated: Container[str]) -> list[Node]:
        """Return the nodes, where losses of softmax take the scores before it."""
        makers = {name: node for node in self.nodes for name in node.outputs}
        nodes = []
        for node in self.nodes:
            maker = makers.get(node.inputs[0]) if node.inputs else None
            if (
                node.kind == "Nll"
                and not node.attributes.get("inputIsLogProbability")
                and maker is not None
                and maker.kind == "Softmax"
                and self._is_along_rows(maker)
                and node.inputs[0] not in differentiated
            ):
                inputs = (maker.inputs[0], *node.inputs[1:])
                node = replace(node, operator=LIKELIHOOD_OF_SCORES, inputs=inputs)
            nodes.append(node)
        return nodes

    def _is_along_rows(self, softmax: Node) -> bool:
        rank = self.infos[softmax.inputs[0]].rank()
        return int(softmax.attributes["axis"]) in (-1, rank - 1)


def _input_info(value: onnx.ValueInfoProto, shapes: InputShapeInfo) -> TensorInfo:
    if shapes.has(value.name):
        return shapes.get(value.name)
    info = info_of(value)
    if info is None:
        raise popart_exception(
            f"The model does not say which type and shape its input {value.name} has. "
            "Add them to an InputShapeInfo, and give that as inputShapeInfo."
        )
    return info
