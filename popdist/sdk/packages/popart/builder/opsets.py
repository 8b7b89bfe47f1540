"""The sets of operators of a builder. Their methods add nodes to its graph.

Any: attributes are numbers, strings, arrays and lists. A method returns one name or a
list of them.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import cache, partial
from inspect import Parameter, Signature
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import popart_exception
from ..nodes import unavailable
from ..operators import GRAPHCORE_DOMAIN, ONNX
from ..tensor_info import element_type
from .graphcore_methods import GRAPHCORE_METHODS, REQUIRED, Method

# Python's own words are no names of methods.
_LOGICAL = {"And", "If", "Not", "Or", "Xor"}
# They go with PopART's own way to say it, or are tensors in another form.
_LEFT_OUT = {"auto_pad", "sparse_value"}


# The attributes that are graphs: the branches of If have no inputs.
_BRANCHES = ("then_branch", "else_branch")
_GRAPHS = (*_BRANCHES, "body", "callee")
# Other releases' names of the last argument, and a keyword of Python.
_ALIASES = {
    "debugPrefix": "debugContext",
    "debugName": "debugContext",
    "name": "debugContext",
    "lambda": "lambda_",
}


def method_name(kind: str) -> str:
    """Return the name of the method that adds an operator of ONNX."""
    return f"logical_{kind.lower()}" if kind in _LOGICAL else kind.lower()


@cache
def onnx_methods(version: int) -> dict[str, Method]:
    """Return the methods for the operators of a version of ONNX that are available."""
    methods = {}
    for kind in sorted(ONNX):
        try:
            schema = onnx.defs.get_schema(kind, version, "")
        except onnx.defs.SchemaError:
            continue
        names = sorted(schema.attributes.keys() - _LEFT_OUT)
        required = [name for name in names if schema.attributes[name].required]
        optional = [name for name in names if name not in required]
        arguments = dict.fromkeys(required, REQUIRED) | dict.fromkeys(optional)
        if kind == "Constant":
            arguments = {"value": REQUIRED}
        variable = schema.min_output != schema.max_output
        methods[method_name(kind)] = Method(
            kind,
            schema.min_input,
            None if schema.max_input > 100 else schema.max_input,
            arguments,
            schema.max_output if not variable else 1,
            variable,
        )
    return methods


def _signature(method: Method) -> Signature:
    """Return the arguments that a method takes, in PopART's order."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [] if method.most == 0 else [Parameter("args", kind)]
    if method.counted:
        parameters.append(Parameter("num_outputs", kind))
    # A word of Python's cannot name a parameter.
    parameters += [
        Parameter("lambda_" if name == "lambda" else name, kind, default=default)
        for name, default in method.attributes.items()
    ]
    return Signature([*parameters, Parameter("debugContext", kind, default="")])


class OperatorSet:
    """Operators of one domain and version."""

    def __init__(
        self,
        add_node: Callable[..., list[str]],
        domain: str,
        version: int,
        methods: dict[str, Method],
    ) -> None:
        self._add_node, self._domain = add_node, domain
        self.version, self._methods = version, methods

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._methods:
            domain = self._domain or "ai.onnx"
            raise unavailable(f"{domain}'s {name}, version {self.version},")
        return partial(self._add, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    # attributes are numbers, strings, arrays and lists; a result is one name, or
    # the list of them.
    def _add(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        method = self._methods[name]
        kwargs = {_ALIASES.get(word, word): value for word, value in kwargs.items()}
        signature = _signature(method)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{name}(): incompatible function arguments: {error}. It takes "
                f"{signature}."
            ) from None
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        inputs, context = arguments.pop("args", []), arguments.pop("debugContext")
        count = int(arguments.pop("num_outputs", method.outputs))
        _check_inputs(name, method, inputs)
        attributes = {
            attribute: stored_attribute(attribute, value)
            for attribute, value in zip(
                method.attributes, arguments.values(), strict=True
            )
            if value is not None
        }
        names = self._add_node(
            method.kind, self._domain, inputs, count, context=context, **attributes
        )
        return names if method.counted or method.outputs > 1 else names[0]


def graphcore_operators(add_node: Callable[..., list[str]]) -> OperatorSet:
    """Return the operators of ai.graphcore."""
    return OperatorSet(add_node, GRAPHCORE_DOMAIN, 1, GRAPHCORE_METHODS)


def _check_inputs(name: str, method: Method, inputs: Any) -> None:
    if not isinstance(inputs, list | tuple) or not all(
        isinstance(tensor, str) for tensor in inputs
    ):
        raise TypeError(
            f"{name}(): incompatible function arguments: the inputs are {inputs!r}, "
            "but must be a list of the names of tensors."
        )
    if len(inputs) < method.fewest or (
        method.most is not None and len(inputs) > method.most
    ):
        most = "inf" if method.most is None else method.most
        raise popart_exception(
            f"{method.kind} has invalid number of inputs {len(inputs)}. Must be "
            f"between {method.fewest}..{most}"
        )


def stored_attribute(name: str, value: Any) -> Any:
    """Return an attribute as ONNX stores it; None for an empty list, as by default."""
    if name in _GRAPHS:
        return _graph(name, value)
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(np.array(value, order="C"))
    if name in ("to", "outDataType") and isinstance(value, str):
        return 0 if value == "UNDEFINED" else element_type(value).onnx
    if name in ("data_type", "init_type"):
        return int(value)
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple | range):
        return [v.item() if isinstance(v, np.generic) else v for v in value] or None
    return value


def _graph(name: str, value: Any) -> onnx.GraphProto:
    """Return the graph of a builder that createSubgraphBuilder() has returned."""
    body = getattr(value, "body", None)
    if not isinstance(body, onnx.GraphProto):
        raise TypeError(
            f"incompatible function arguments: {name} is {value!r}, but must be a "
            "builder that createSubgraphBuilder() returns."
        )
    graph = onnx.GraphProto()
    graph.CopyFrom(body)
    if name in _BRANCHES:
        # Their inputs have the names of tensors around them.
        del graph.input[:]
    return graph
