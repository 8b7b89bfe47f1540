"""The nodes of a model of ONNX, converted to what torch evaluates.

Any: attributes are numbers, strings, lists of these and tensors.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from .errors import UnavailableOperatorError, popart_exception
from .operators import (
    GRAPHCORE_DOMAIN,
    ONNX_DOMAINS,
    Body,
    Form,
    Node,
    captured_by,
    custom_operator,
    operator,
)
from .tensor_info import BY_ONNX, TensorInfo

_HALF = onnx.TensorProto.FLOAT16


def body_of(graph: onnx.GraphProto, arguments: int | None, version: int) -> Body:
    """Return a graph within a node.

    Args:
        graph: The graph.
        arguments: How many of its inputs the node hands it, None for all; it captures
            the others.
        version: The version of ONNX's operators.

    Raises:
        popart_exception: An operator is not available, or not there.
    """
    nodes = tuple((node_of(proto, version), proto) for proto in graph.node)
    parameters = tuple(value.name for value in graph.input[:arguments])
    initial = {proto.name: tensor_of(proto) for proto in graph.initializer}
    own, captured = {*parameters, *initial}, []
    for node, _ in nodes:
        if node.kind == "BatchNormalization" and len(node.outputs) > 1:
            raise popart_exception(
                "BatchNormalization within a graph of a node updates no running "
                "statistics. Give it one output there, or move it out of the graph."
            )
        captured += [name for name in node.inputs if name and name not in own]
        own.update(node.outputs)
    outputs = tuple(value.name for value in graph.output)
    captured += [name for name in outputs if name not in own]
    infos = {value.name: info_of(value) for value in graph.input[:arguments]}
    return Body(
        parameters,
        {name: info for name, info in infos.items() if info is not None},
        outputs,
        nodes,
        initial,
        tuple(dict.fromkeys(captured)),
    )


def node_of(node: onnx.NodeProto, version: int) -> Node:
    """Return a node of a model.

    Raises:
        popart_exception: Its operator is not available, or not in this form.
    """
    converted = operator(node.domain, node.op_type)
    if converted is None:
        if node.domain in ONNX_DOMAINS:
            raise unavailable(f"ai.onnx's {node.op_type}")
        try:
            converted = custom_operator(node.op_type)
        except UnavailableOperatorError:
            domain = node.domain
            if domain == GRAPHCORE_DOMAIN or domain.startswith("ai.onnx."):
                raise unavailable(f"{domain}'s {node.op_type}") from None
            raise
    # The branches of If get nothing but what they capture, and callees all inputs.
    own = len(node.input)
    arguments = {"If": 0, "Loop": own, "Scan": own}.get(node.op_type)
    attributes = {
        attribute.name: body_of(attribute.g, arguments, version)
        if attribute.type == onnx.AttributeProto.GRAPH
        else value_of(attribute)
        for attribute in node.attribute
        # Attributes for IPUs and stages are PopART's own.
        if not attribute.name.startswith("__")
    }
    if node.domain in ONNX_DOMAINS:
        attributes = {**_defaults(node.op_type, version), **attributes}
    refusal = converted.refusal(Form(node.input, len(node.output), attributes, version))
    if refusal:
        raise popart_exception(f"{node.op_type} {refusal}")
    return Node(
        converted,
        node.op_type,
        (*node.input, *captured_by(attributes)),
        tuple(node.output),
        attributes,
        version,
    )


def unavailable(what: str) -> UnavailableOperatorError:
    """Return the error on an operator that is not available."""
    return UnavailableOperatorError(
        f"{what} is not available in popdist's stand-in for popart. docs/popart.md "
        "lists the operators that are."
    )


def value_of(attribute: onnx.AttributeProto) -> Any:
    """Return what an attribute holds; tensors are torch's."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return tensor_of(value)
    if attribute.type in (onnx.AttributeProto.STRINGS,):
        return [text.decode() for text in value]
    return list(value) if isinstance(value, Sequence) else value


@cache
def _defaults(kind: str, version: int) -> Mapping[str, Any]:
    """Return the attributes of an operator of ONNX that have defaults."""
    schema = onnx.defs.get_schema(kind, version, "")
    return {
        name: value_of(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }


def tensor_of(proto: onnx.TensorProto) -> torch.Tensor:
    """Return the tensor that ONNX or PopART has stored."""
    size = math.prod(proto.dims)
    if proto.data_type == _HALF and 0 < len(proto.int32_data) < size:
        packed = np.array(proto.int32_data, np.int32).view(np.float16)
        return torch.from_numpy(packed[:size].reshape(proto.dims))
    array = numpy_helper.to_array(proto)
    return torch.from_numpy(np.array(array, order="C", copy=True))


def proto_of(array: np.typing.NDArray[Any], name: str) -> onnx.TensorProto:
    """Return a weight as PopART stores it: numbers of FLOAT16 in pairs, as integers.

    Programs read these integers; ONNX stores one number in each.
    """
    proto = numpy_helper.from_array(array, name)
    if proto.data_type == _HALF:
        proto.ClearField("raw_data")
        numbers = np.zeros(array.size + array.size % 2, np.float16)
        numbers[: array.size] = array.ravel()
        proto.int32_data.extend(numbers.view(np.int32).tolist())
    return proto


def info_of(value: onnx.ValueInfoProto) -> TensorInfo | None:
    """Return the type and shape of an input; None if the model does not know them."""
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    if tensor.elem_type not in BY_ONNX or not all(
        dim.HasField("dim_value") for dim in tensor.shape.dim
    ):
        return None
    return TensorInfo(BY_ONNX[tensor.elem_type].name, dims)
