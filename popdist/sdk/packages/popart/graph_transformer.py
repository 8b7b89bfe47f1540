"""GraphTransformer: conversions of a model before a session is made of it."""

import os

import numpy as np
import onnx

from .errors import Emulated, popart_exception
from .graph import load_model
from .nodes import proto_of, tensor_of

_FLOAT, _HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


class GraphTransformer(Emulated):
    """Converts a copy of a model."""

    def __init__(self, modelProtoOrFilename: bytes | str | os.PathLike[str]) -> None:
        """Load a model.

        Raises:
            popart_exception: It is no model.
        """
        self._model = load_model(modelProtoOrFilename)

    def getModelProto(self) -> bytes:
        """Return the model as it is now, as Builder.getModelProto() does."""
        proto: bytes = self._model.SerializeToString()
        return proto

    def convertFloatsToHalfs(self) -> None:
        """Make all tensors of FLOAT that the model declares or holds ones of FLOAT16.

        Raises:
            popart_exception: A node contains a graph. PopART raises this, too.
        """
        graph = self._model.graph
        tensors = list(graph.initializer)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g") or attribute.graphs:
                    raise popart_exception(
                        f"convertFloatsToHalfs converts no graph within a node, and "
                        f"{node.op_type} has one. Build the model in FLOAT16."
                    )
                if attribute.HasField("t"):
                    tensors.append(attribute.t)
        for tensor in tensors:
            if tensor.data_type == _FLOAT:
                half = tensor_of(tensor).numpy().astype(np.float16)
                tensor.CopyFrom(proto_of(half, tensor.name))
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == _FLOAT:
                value.type.tensor_type.elem_type = _HALF
