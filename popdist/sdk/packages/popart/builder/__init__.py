"""Builds models of ONNX, node by node, and knows the shape of each tensor at once.

Any: attributes of operators are numbers, strings, tensors and lists.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import torch

from ..errors import popart_exception
from ..graph import Graph, InputShapeInfo, load_model, note_settings
from ..inference import Inference
from ..nodes import node_of, proto_of
from ..operators import GRAPHCORE_DOMAIN, NEWEST_VERSION, OLDEST_VERSION
from ..settings import VariableSettings
from ..step_io import Array
from ..tensor_info import TensorInfo
from .annotations import Annotations
from .opsets import OperatorSet, graphcore_operators, onnx_methods, stored_attribute

DEFAULT_VERSION = 10
# Models of these versions of ONNX have the operators that PopART knows.
_IR_VERSION = 6
_PREFIX = "aiOnnxOpset"


class DebugContext:
    """A name for what a builder adds."""

    def __init__(self, name: str = "") -> None:
        self.name = name


class Builder(Annotations):
    """Builds a model of ONNX, or a graph within a node of one."""

    # The builder of the graph around this one.
    _parent: "Builder | None" = None

    def __init__(
        self,
        modelProtoOrFilename: bytes | str | os.PathLike[str] | None = None,
        opsets: Mapping[str, int] | None = None,
    ) -> None:
        """Begin with an empty model, or go on with one.

        Args:
            modelProtoOrFilename: A model in its serialised form, or the path of one.
            opsets: The versions of operators by their domain.
        """
        super().__init__()
        self._version: int | None = (opsets or {}).get("ai.onnx")
        self._model = onnx.ModelProto(ir_version=_IR_VERSION)
        self._model.graph.name = "BuilderGraph"
        self._known = Inference({}, {})
        # Tensors of this graph with shapes that only a use of the graph tells.
        self._untyped: set[str] = set()
        # All names of tensors, of the graphs within this one, too.
        self._names: set[str] = set()
        self._scopes: list[str] = []
        self.aiGraphcore = self.aiGraphcoreOpset1 = graphcore_operators(self.add_node)
        if modelProtoOrFilename is not None:
            self._resume(load_model(modelProtoOrFilename))

    def _resume(self, model: onnx.ModelProto) -> None:
        graph = Graph(model, InputShapeInfo(), training=True)
        self._model = model
        self._version = graph.nodes[0].version if graph.nodes else None
        self._known = Inference(graph.infos, graph.constants)
        self._names = set(graph.infos)
        for node in model.graph.node:
            self.note_outputs(node)

    @property
    def _root(self) -> "Builder":
        """The builder of the outermost graph."""
        return self if self._parent is None else self._parent._root

    @property
    def _used_version(self) -> int:
        return self._root._version or DEFAULT_VERSION

    @property
    def aiOnnx(self) -> OperatorSet:
        """The operators of ONNX, of the version that was used first; 10 by default."""
        return self._opset(self._used_version)

    def aiOnnxOpsetVersion(self, version: int) -> None:
        """Choose the version of ONNX's operators."""
        self._opset(version)

    def __getattr__(self, name: str) -> Any:
        number = name.removeprefix(_PREFIX)
        if number != name and number.isdecimal():
            return self._opset(int(number))
        return super().__getattr__(name)

    def _opset(self, version: int) -> OperatorSet:
        if not OLDEST_VERSION <= version <= NEWEST_VERSION:
            raise ValueError(f"Unsupported or unrecognized ai.Onnx version: {version}")
        root = self._root
        if root._version not in (None, version):
            raise RuntimeError(
                f"Invalid opset '{_PREFIX}{version}' selected. Opset for domain "
                f"ai.onnx already defined as {root._version}"
            )
        root._version = version
        return OperatorSet(self.add_node, "", version, onnx_methods(version))

    # addInputTensor(info, name), addInputTensor("FLOAT", [1, 2], name), and each
    # with InputSettings before the name.
    def addInputTensor(self, *args: Any, **kwargs: Any) -> str:
        """Add an input that each micro-batch brings, and return its name."""
        words = ("tensorInfo", "dataType", "shape")
        rest = [*args, *(kwargs[word] for word in words if word in kwargs)]
        first = rest[0] if rest else None
        info = first if isinstance(first, TensorInfo) else TensorInfo(*rest[:2])
        name = self._free_name(_context(args, kwargs) or "input")
        self._model.graph.input.append(_value_info(name, info))
        self._known.infos[name] = info
        return name

    def createSubgraphBuilder(self) -> "Builder":
        """Return a builder for a graph that If, Loop or Call runs.

        Its nodes can take tensors of the graphs around it by their names.
        """
        builder = Builder()
        builder._parent = self
        return builder

    def addUntypedInputTensor(self, debugContext: str | DebugContext = "") -> str:
        """Add an input of a graph. The use of the graph tells its type."""
        if self._parent is None:
            raise popart_exception(
                "Can not add untyped tensors to the top-level graph. Use "
                "addInputTensor() instead."
            )
        name = self._free_name(_text(debugContext) or "input")
        self._model.graph.input.append(onnx.ValueInfoProto(name=name))
        self._untyped.add(name)
        return name

    def addInputTensorFromParentGraph(self, tensorId: str) -> None:
        """Add an input of a graph that has the name of a tensor around it."""
        if self._parent is None or not self._parent._has(tensorId):
            raise popart_exception(
                f"Failed to add unrecognised Tensor {tensorId} from higher scope. Give "
                "the name of a tensor of a graph around this one."
            )
        self._model.graph.input.append(onnx.ValueInfoProto(name=tensorId))
        self._untyped.add(tensorId)

    def addInitializedInputTensor(
        self,
        initVal: Array,
        variableSettings: VariableSettings | str | DebugContext = "",
        debugContext: str | DebugContext = "",
        debugPrefix: str = "",
    ) -> str:
        """Add a weight, and return its name.

        Args:
            initVal: The weight. If the settings have groups, the first dimension is
                not the tensor's: it has a row for each group of replicas.
            variableSettings: The replicas that share a value; also the name.
            debugContext: The name.
            debugPrefix: The name in older releases.
        """
        if self._parent is not None:
            raise popart_exception(
                "Weights belong to the outermost graph. Add this one there, and take "
                "it here by its name."
            )
        array = np.array(initVal, order="C")
        words = (variableSettings, debugContext, debugPrefix)
        texts = [_text(w) for w in words if not isinstance(w, VariableSettings)]
        name = self._free_name(next(filter(None, texts), "init_input"))
        info = TensorInfo(array)
        settings = variableSettings
        if isinstance(settings, VariableSettings) and settings.is_grouped:
            if array.dtype.kind != "f" or not array.ndim:
                raise popart_exception(
                    f"The weight {name} is {info!r}, but groups of replicas need "
                    "fractions, and a first dimension that numbers the groups."
                )
            info = TensorInfo(array.dtype, array.shape[1:])
            note_settings(self._model, name, settings)
        self._model.graph.input.append(_value_info(name, info))
        self._model.graph.initializer.append(proto_of(array, name))
        self._known.infos[name] = info
        # Integers are constants, such as the shape that a Reshape takes.
        if array.dtype.kind != "f":
            self._known.constants[name] = torch.from_numpy(array)
        return name

    def addOutputTensor(self, outputName: str) -> None:
        """Make a tensor an output of the model, or of a graph within it."""
        known = self._visible().infos
        if self._parent is not None and outputName not in known:
            self._check_exists(outputName)
            value = onnx.ValueInfoProto(name=outputName)
        else:
            value = _value_info(outputName, self._info(outputName))
        self._model.graph.output.append(value)

    def add_node(
        self,
        kind: str,
        domain: str,
        inputs: Sequence[str],
        outputs: int,
        /,
        *,
        context: str | DebugContext = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node, and return the names of its outputs."""
        for name in inputs:
            if name:
                self._check_exists(name)
        names = [self._free_name(f"{kind}:{index}") for index in range(outputs)]
        label = "/".join([*self._scopes, _text(context)]).strip("/") or None
        # It leaves out attributes that are None.
        node = onnx.helper.make_node(
            *(kind, list(inputs), names, label),
            domain=domain or None,
            **{**attributes, **self.common},
        )
        self._infer(node)
        self._model.graph.node.append(node)
        self.note_outputs(self._model.graph.node[-1])
        return list(node.output)

    def _infer(self, proto: onnx.NodeProto) -> None:
        """Find the types and shapes of what a new node makes."""
        node, known = node_of(proto, self._used_version), self._visible()
        for name in node.inputs:
            if name:
                self._check_exists(name)
        if any(name and name not in known.infos for name in node.inputs):
            self._untyped.update(node.outputs)
            return
        known.add(node, proto)
        for name in node.outputs:
            self._known.infos[name] = known.infos[name]
            if name in known.constants:
                self._known.constants[name] = known.constants[name]

    def _visible(self) -> Inference:
        """Return the known types of tensors in this graph and the graphs around it."""
        if self._parent is None:
            return self._known
        outer = self._parent._visible()
        infos = {n: i for n, i in outer.infos.items() if n not in self._untyped}
        constants = {n: v for n, v in outer.constants.items() if n in infos}
        return Inference(
            {**infos, **self._known.infos}, {**constants, **self._known.constants}
        )

    def customOp(
        self,
        opName: str,
        opVersion: int,
        domain: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any],
        numOutputs: int = 1,
        debugContext: str | DebugContext = "",
        name: str = "",
    ) -> list[str]:
        """Add a node of an operator by its name, and return the names of its outputs.

        The function of a custom operator runs once here, on zeros: that tells the
        shapes of its outputs.

        Raises:
            popart_exception: It is none of the operators that are available, and no
                function is registered for it by popdist.sdk.register_custom_op().
        """
        return self.add_node(
            *(opName, domain, inputs, numOutputs),
            context=_text(debugContext) or name,
            **{n: stored_attribute(n, value) for n, value in attributes.items()},
        )

    def reshape_const(
        self,
        aiOnnx: OperatorSet,
        args: Sequence[str],
        shape: Iterable[int],
        debugContext: str = "",
    ) -> str:
        """Add a Reshape to a shape, and return the name of its output."""
        constant = aiOnnx.constant(np.array(list(shape), np.int64))
        name: str = aiOnnx.reshape([args[0], constant], debugContext=debugContext)
        return name

    @contextmanager
    def nameScope(self, name: str) -> Iterator[None]:
        """Prefix the names of all nodes and tensors that the block adds."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def getNameScope(self, name: str = "") -> str:
        """Return a name with the names of the scopes before it."""
        return "".join(f"{scope}/" for scope in self._scopes) + name

    def setGraphName(self, name: str) -> None:
        """Name the graph."""
        self._model.graph.name = name

    def getModelProto(self) -> bytes:
        """Return the model in its serialised form."""
        versions = (("", self._used_version), (GRAPHCORE_DOMAIN, 1))
        del self._model.opset_import[:]
        self._model.opset_import.extend(
            onnx.helper.make_opsetid(domain, version) for domain, version in versions
        )
        return bytes(self._model.SerializeToString())

    def saveModelProto(self, filename: str) -> None:
        """Write the model to a file."""
        with open(filename, "wb") as file:
            file.write(self.getModelProto())

    def getInputTensorIds(self) -> list[str]:
        """Return the names of the inputs, weights among them."""
        return [value.name for value in self._model.graph.input]

    def getOutputTensorIds(self) -> list[str]:
        """Return the names of the outputs."""
        return [value.name for value in self._model.graph.output]

    def getValueTensorIds(self) -> list[str]:
        """Return the names of what nodes make, but for outputs of the model."""
        outputs = set(self.getOutputTensorIds())
        names = [name for node in self._model.graph.node for name in node.output]
        return [name for name in names if name not in outputs]

    def getTrainableTensorIds(self) -> list[str]:
        """Return the names of the weights."""
        return [initial.name for initial in self._model.graph.initializer]

    def getTensorShape(self, id: str) -> list[int]:
        """Return the shape of a tensor."""
        return self._info(id).shape()

    def getTensorDtypeString(self, id: str) -> str:
        """Return the type of the elements of a tensor, as numpy names it."""
        return self._info(id).data_type_lcase()

    def isInitializer(self, id: str) -> bool:
        """Return whether a tensor is a weight."""
        return id in self.getTrainableTensorIds()

    @property
    def body(self) -> onnx.GraphProto:
        """The graph, as an attribute of a node."""
        return self._model.graph

    def _has(self, name: str) -> bool:
        """Return whether a tensor is in this graph, or in one around it."""
        if name in self._known.infos or name in self._untyped:
            return True
        return self._parent is not None and self._parent._has(name)

    def _check_exists(self, name: str) -> None:
        if not self._has(name):
            raise popart_exception(
                f"{name!r} is not a tensor of this builder. Give the names that its "
                "methods return."
            )

    def _info(self, name: str) -> TensorInfo:
        self._check_exists(name)
        infos = self._visible().infos
        if name not in infos:
            raise popart_exception(
                f"The type and shape of {name} depend on where this graph is used. Add "
                "its inputs with addInputTensor()."
            )
        return infos[name]

    def _free_name(self, name: str) -> str:
        """Return a name with its scopes that no tensor has yet."""
        names = self._root._names
        base = self.getNameScope(name)
        free, count = base, 0
        while free in names:
            count += 1
            free = f"{base}/{count}"
        names.add(free)
        return free


def _value_info(name: str, info: TensorInfo) -> onnx.ValueInfoProto:
    kind = info.element_type.onnx
    return onnx.helper.make_tensor_value_info(name, kind, info.shape())


def _text(context: str | DebugContext) -> str:
    return context.name if isinstance(context, DebugContext) else context


def _context(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the name among the arguments of addInputTensor(): the last text."""
    given = kwargs.get("debugContext", kwargs.get("debugPrefix"))
    if given is None:
        last = args[-1] if len(args) > 1 else ""
        given = last if isinstance(last, str | DebugContext) else ""
    return _text(given)
