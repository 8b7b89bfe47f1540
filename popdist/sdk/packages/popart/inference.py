"""The types and shapes of what nodes make, before a graph runs.

onnx infers the outputs of ONNX's operators. Other operators are evaluated on tensors
of any values: torch's own tensors without values take seconds to import.
"""

from collections.abc import Mapping, Sequence

import onnx
import torch
from onnx import numpy_helper
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError

from .errors import popart_exception
from .nodes import info_of
from .operators import ONNX_DOMAINS, Body, Node, Values, bodies_of, scan_numbers
from .tensor_info import TensorInfo

# Their outputs depend on the shapes of their inputs alone.
_OF_SHAPES = ("Shape", "Size")
# They divide, and integers not by zero.
_DIVIDING = ("Div", "Fmod", "Mod", "Remainder")


class Inference:
    """The types and shapes of all tensors, and the values of constants."""

    def __init__(self, infos: Mapping[str, TensorInfo], constants: Values) -> None:
        self.infos = dict(infos)
        self.constants = dict(constants)
        for name, value in constants.items():
            self.infos[name] = TensorInfo.of(value)

    def add(self, node: Node, proto: onnx.NodeProto) -> None:
        """Infer the outputs of a node from its inputs.

        Raises:
            popart_exception: The inputs do not fit the operator.
        """
        missing = [name for name in node.inputs if name and name not in self.infos]
        if missing:
            raise popart_exception(
                f"{node.kind} takes {missing[0]}, but no node before it makes that "
                "tensor, and the model has no input of this name."
            )
        self._check_constants(node)
        if node.kind in _OF_SHAPES or self.constants.keys() >= {*node.inputs} - {""}:
            outputs = self._evaluated(node, training=False)
            self.constants.update(outputs)
            infos = {name: TensorInfo.of(value) for name, value in outputs.items()}
        elif bodies_of(node.attributes):
            of_outputs = self._by_bodies(node, proto)
            infos = dict(zip(node.outputs, of_outputs, strict=True))
        elif (known := self._inferred(node, proto)) is not None:
            infos = known
        else:
            outputs = self._evaluated(node, training=True)
            infos = {name: TensorInfo.of(value) for name, value in outputs.items()}
        self.infos.update(infos)

    def _check_constants(self, node: Node) -> None:
        for index, name in node.constant_inputs():
            if name not in self.constants:
                raise popart_exception(
                    f"{node.kind} needs a constant as its input {index}, but {name} is "
                    "known only when the graph runs. Make it with constant()."
                )

    def _inferred(
        self, node: Node, proto: onnx.NodeProto
    ) -> dict[str, TensorInfo] | None:
        """Return what onnx knows of the outputs; None if that is not all."""
        if proto.domain not in ONNX_DOMAINS:
            return None
        schema = onnx.defs.get_schema(node.kind, node.version, "")
        # For functions of other operators it infers too little.
        if schema.has_function:
            return None
        bare = onnx.helper.make_node(proto.op_type, proto.input, proto.output)
        # It takes only attributes of the operator.
        own = [a for a in proto.attribute if not a.name.startswith("__")]
        bare.attribute.extend(own)
        names = [name for name in node.inputs if name]
        types = {name: _type_proto(self.infos[name]) for name in names}
        data = {
            name: numpy_helper.from_array(self.constants[name].numpy(), name)
            for _, name in node.constant_inputs()
        }
        opsets = [onnx.helper.make_opsetid("", node.version)]
        try:
            output_types = onnx.shape_inference.infer_node_outputs(
                schema, bare, types, data, opset_imports=opsets
            )
        except (InferenceError, ValidationError) as error:
            # PopART takes more types than ONNX, such as indices without a sign, but
            # only integers of different types: a device has none of 64 bits.
            kinds = {self.infos[name].data_type() for name in names}
            if isinstance(error, ValidationError) and (
                len(kinds) == 1
                or kinds & {"UINT16", "UINT32"}
                or kinds >= {"INT32", "INT64"}
            ):
                return None
            raise popart_exception(
                f"{node.kind} cannot be computed of {', '.join(names)}: {error}"
            ) from None
        infos = {
            name: info_of(onnx.ValueInfoProto(name=name, type=output_types[name]))
            for name in node.outputs
            if name in output_types
        }
        known = {name: info for name, info in infos.items() if info is not None}
        return known if len(known) == len(node.outputs) else None

    def _by_bodies(self, node: Node, proto: onnx.NodeProto) -> Sequence[TensorInfo]:
        """Return the types and shapes of the outputs of a node with graphs."""
        if node.kind == "Loop":
            return self._loop(node, proto)
        if node.kind == "Scan":
            return self._scan(node, proto)
        arguments = [self.infos[name] for name in proto.input]
        if node.kind == "Call":
            return self._within(node.attributes["callee"], arguments)
        self._check_scalar(node, 0, "condition", ("BOOL",))
        names = ("then_branch", "else_branch")
        taken, other = (self._within(node.attributes[name], ()) for name in names)
        if taken != other:
            raise popart_exception(
                f"The branches of If return {taken} and {other}. Both must return "
                "tensors of the same types and shapes."
            )
        return taken

    def _loop(self, node: Node, proto: onnx.NodeProto) -> Sequence[TensorInfo]:
        """Return the types and shapes of the outputs of a Loop."""
        body: Body = node.attributes["body"]
        self._check_scalar(node, 0, "trip count", ("INT32", "INT64"))
        self._check_scalar(node, 1, "condition", ("BOOL",))
        number = TensorInfo.of(body.parameter(0, 0))
        first = TensorInfo.of(body.parameter(1, True))
        first = self.infos[proto.input[1]] if proto.input[1] else first
        carried = [self.infos[name] for name in proto.input[2:]]
        condition, *outputs = self._within(body, [number, first, *carried])
        returned = [condition, *outputs[: len(carried)]]
        _check_carried(node, [first, *carried], returned)
        stacked = outputs[len(carried) :]
        if not stacked:
            return carried
        trips = proto.input[0]
        if trips not in self.constants:
            raise popart_exception(
                "Loop stacks outputs of its iterations, whose number must be known. "
                "Make its trip count with constant()."
            )
        size = max(0, int(self.constants[trips]))
        return [
            *carried,
            *(TensorInfo(i.data_type(), [size, *i.shape()]) for i in stacked),
        ]

    def _scan(self, node: Node, proto: onnx.NodeProto) -> Sequence[TensorInfo]:
        """Return the types and shapes of the outputs of a Scan."""
        infos = [self.infos[name] for name in proto.input]
        count = int(node.attributes["num_scan_inputs"])
        states, scanned = infos[:-count], infos[-count:]
        axes = scan_numbers(node.attributes, "scan_input_axes", count)
        shapes = [info.shape() for info in scanned]
        lengths = {
            shape.pop(_axis_of(info, axis))
            for info, shape, axis in zip(scanned, shapes, axes, strict=True)
        }
        if len(lengths) > 1 or 0 in lengths:
            raise popart_exception(
                f"Scan takes a slice of each of {scanned} in an iteration, along the "
                f"axes {axes}. These axes must have the same size, of 1 or more."
            )
        slices = [
            TensorInfo(info.data_type(), shape or [1])
            for info, shape in zip(scanned, shapes, strict=True)
        ]
        outputs = self._within(node.attributes["body"], [*states, *slices])
        _check_carried(node, states, outputs[: len(states)])
        joined = outputs[len(states) :]
        axes = scan_numbers(node.attributes, "scan_output_axes", len(joined))
        shapes = [info.shape() for info in joined]
        for info, shape, axis in zip(joined, shapes, axes, strict=True):
            shape[_axis_of(info, axis)] *= max(lengths)
        return [
            *states,
            *(
                TensorInfo(i.data_type(), s)
                for i, s in zip(joined, shapes, strict=True)
            ),
        ]

    def _check_scalar(
        self, node: Node, index: int, name: str, types: Sequence[str]
    ) -> None:
        """Raise popart_exception unless an input is left out, or a scalar of a type."""
        if not node.inputs[index]:
            return
        info = self.infos[node.inputs[index]]
        if info.nelms() != 1 or info.data_type() not in types:
            raise popart_exception(
                f"The {name} of {node.kind} is {info!r}, but must be a scalar of the "
                f"type {' or '.join(types)}."
            )

    def _within(self, body: Body, arguments: Sequence[TensorInfo]) -> list[TensorInfo]:
        """Return the types and shapes that a graph of a node returns."""
        inner = Inference(self.infos, {**self.constants, **body.initial})
        for name, info in zip(body.parameters, arguments, strict=True):
            inner.constants.pop(name, None)
            inner.infos[name] = info
        for node, proto in body.nodes:
            inner.add(node, proto)
        return [inner.infos[name] for name in body.outputs]

    def _evaluated(self, node: Node, training: bool) -> Values:
        """Return the outputs for constants, and some values of the other inputs."""
        value = 1 if node.kind in _DIVIDING else 0
        samples = {}
        for name in node.inputs:
            if name in self.constants:
                samples[name] = self.constants[name]
            elif name:
                info = self.infos[name]
                one = torch.full([], value, dtype=info.element_type.torch)
                samples[name] = one.expand(info.shape())
        return node.evaluate(samples, training, for_shapes=True)


def _check_carried(
    node: Node, taken: Sequence[TensorInfo], returned: Sequence[TensorInfo]
) -> None:
    """Raise popart_exception if what a body carries on changes its type or shape."""
    if list(taken) != list(returned):
        raise popart_exception(
            f"The body of {node.kind} carries on {taken}, but returns {returned}. "
            "Return the same types and shapes."
        )


def _axis_of(info: TensorInfo, axis: int) -> int:
    """Return an axis of a Scan, counted from the first one."""
    if not -info.rank() <= axis < info.rank():
        raise popart_exception(f"Scan cannot use axis {axis} of {info}: it has none.")
    return axis % info.rank()


def _type_proto(info: TensorInfo) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(info.element_type.onnx, info.shape())
