"""Builds models of ONNX, node by node, and knows the shape of each tensor at once."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from ..errors import popart_exception
from ..graph import Graph, InputShapeInfo, load_model
from ..inference import Inference
from ..nodes import node_of
from ..operators import NEWEST_VERSION, OLDEST_VERSION
from ..step_io import Array
from ..tensor_info import TensorInfo
from .annotations import Annotations
from .opsets import OperatorSet, graphcore_operators, onnx_methods

DEFAULT_VERSION = 10
# Models of these versions of ONNX have the operators that PopART knows.
_IR_VERSION = 6
_PREFIX = "aiOnnxOpset"


class DebugContext:
    """A name for what a builder adds."""

    def __init__(self, name: str = "") -> None:
        self.name = name


class Builder(Annotations):
    """Builds a model of ONNX."""

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
        self._initial: set[str] = set()
        self._scopes: list[str] = []
        self.aiGraphcore = self.aiGraphcoreOpset1 = graphcore_operators(self)
        if modelProtoOrFilename is not None:
            self._resume(load_model(modelProtoOrFilename))

    def _resume(self, model: onnx.ModelProto) -> None:
        graph = Graph(model, InputShapeInfo(), training=True)
        self._model = model
        self._version = graph.nodes[0].version if graph.nodes else None
        self._initial = {initial.name for initial in model.graph.initializer}
        self._known = Inference(graph.infos, graph.constants)
        for node in model.graph.node:
            self.note_outputs(node)

    @property
    def aiOnnx(self) -> OperatorSet:
        """The operators of ONNX, of the version that was used first; 10 by default."""
        return self._opset(self._version or DEFAULT_VERSION)

    def aiOnnxOpsetVersion(self, version: int) -> None:
        """Choose the version of ONNX's operators."""
        self._opset(version)

    def __getattr__(self, name: str) -> OperatorSet:
        number = name.removeprefix(_PREFIX)
        if number != name and number.isdecimal():
            return self._opset(int(number))
        raise AttributeError(
            f"popdist's stand-in for popart has no Builder.{name}. Subgraphs, custom "
            "operators and weights that differ between replicas are not available.",
            name=name,
            obj=self,
        )

    def _opset(self, version: int) -> OperatorSet:
        if not OLDEST_VERSION <= version <= NEWEST_VERSION:
            raise ValueError(f"Unsupported or unrecognized ai.Onnx version: {version}")
        if self._version not in (None, version):
            raise RuntimeError(
                f"Invalid opset '{_PREFIX}{version}' selected. Opset for domain "
                f"ai.onnx already defined as {self._version}"
            )
        self._version = version
        return OperatorSet(self, "", version, onnx_methods(version))

    # Any: addInputTensor(info, name), addInputTensor("FLOAT", [1, 2], name), and each
    # with InputSettings before the name.
    def addInputTensor(self, *args: Any, **kwargs: Any) -> str:
        """Add an input that each micro-batch brings, and return its name."""
        context = _context(args, kwargs)
        rest = [
            *(arg for arg in args if isinstance(arg, str | TensorInfo | Sequence)),
            *(kwargs[n] for n in ("tensorInfo", "dataType", "shape") if n in kwargs),
        ]
        if rest and isinstance(rest[0], TensorInfo):
            info = rest[0]
        else:
            info = TensorInfo(*rest[:2])
        name = self._free_name(context or "input")
        self._model.graph.input.append(_value_info(name, info))
        self._known.infos[name] = info
        return name

    def addInitializedInputTensor(
        self,
        initVal: Array,
        debugContext: str | DebugContext = "",
        debugPrefix: str = "",
    ) -> str:
        """Add a weight, and return its name."""
        array = np.array(initVal, order="C")
        name = self._free_name(_text(debugContext) or debugPrefix or "init_input")
        info = TensorInfo(array)
        self._model.graph.input.append(_value_info(name, info))
        self._model.graph.initializer.append(numpy_helper.from_array(array, name))
        self._known.infos[name] = info
        # Integers are constants, such as the shape that a Reshape takes.
        if array.dtype.kind != "f":
            self._known.constants[name] = torch.from_numpy(array)
        self._initial.add(name)
        return name

    def addOutputTensor(self, outputName: str) -> None:
        """Make a tensor an output of the model."""
        info = self._info(outputName)
        self._model.graph.output.append(_value_info(outputName, info))

    # Any: the attributes of operators are numbers, strings, tensors and lists.
    def add_node(
        self,
        kind: str,
        domain: str,
        inputs: Sequence[str],
        outputs: int,
        *,
        context: str | DebugContext = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node, and return the names of its outputs."""
        for name in inputs:
            if name:
                self._info(name)
        all_attributes = {**attributes, **self.common}
        node = onnx.helper.make_node(
            kind,
            list(inputs),
            [self._free_name(f"{kind}:{index}") for index in range(outputs)],
            name="/".join([*self._scopes, _text(context)]).strip("/") or None,
            domain=domain or None,
            **{
                name: value
                for name, value in all_attributes.items()
                if value is not None
            },
        )
        self._known.add(node_of(node, self._version or DEFAULT_VERSION), node)
        self._model.graph.node.append(node)
        self.note_outputs(self._model.graph.node[-1])
        return list(node.output)

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
        """Put a name before those of all that is added in the block."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def getNameScope(self, name: str = "") -> str:
        """Return a name with those of the scopes before it."""
        return "".join(f"{scope}/" for scope in self._scopes) + name

    def setGraphName(self, name: str) -> None:
        """Name the graph."""
        self._model.graph.name = name

    def getModelProto(self) -> bytes:
        """Return the model in its serialised form."""
        del self._model.opset_import[:]
        self._model.opset_import.extend(
            [
                onnx.helper.make_opsetid("", self._version or DEFAULT_VERSION),
                onnx.helper.make_opsetid("ai.graphcore", 1),
            ]
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
        return id in self._initial

    def _info(self, name: str) -> TensorInfo:
        if name not in self._known.infos:
            raise popart_exception(
                f"{name!r} is no tensor of this builder. Give the names that its "
                "methods return."
            )
        return self._known.infos[name]

    def _free_name(self, name: str) -> str:
        """Return a name with its scopes that no tensor has yet."""
        base = self.getNameScope(name)
        free, count = base, 0
        while free in self._known.infos:
            count += 1
            free = f"{base}/{count}"
        return free


def _value_info(name: str, info: TensorInfo) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(
        name, info.element_type.onnx, info.shape()
    )


def _text(context: str | DebugContext) -> str:
    return context.name if isinstance(context, DebugContext) else context


# Any: as in addInputTensor().
def _context(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the name among the arguments of addInputTensor(): the last text."""
    given = kwargs.get("debugContext", kwargs.get("debugPrefix"))
    if given is None:
        last = args[-1] if len(args) > 1 else ""
        given = last if isinstance(last, str | DebugContext) else ""
    return _text(given)
