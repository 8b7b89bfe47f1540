"""The methods of Builder.aiGraphcore: their operators and arguments.

Arguments have PopART's names, order and defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

from ..enums import ReductionType, ScatterReduction

REQUIRED = Parameter.empty


@dataclass(frozen=True, slots=True)
class Method:
    """A method that adds an operator to a graph."""

    kind: str
    fewest: int = 1
    # None for any number.
    most: int | None = 1
    # Any: the defaults of attributes; REQUIRED for those without, None for those that
    # are left out.
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    # Whether the caller says how many outputs it wants.
    counted: bool = False


def _row(
    kind: str, inputs: int = 1, outputs: int = 1, /, **attributes: Any
) -> tuple[str, Method]:
    """Return a method with its name."""
    loss = "loss" if kind in ("Ctc", "L1", "Nll") else ""
    method = Method(kind, inputs, inputs, attributes, outputs)
    return f"{kind.lower()}{loss}", method


_UNARY = "BitwiseNot Detach Expm1 Gelu Log1p Nop Round Swish"
_BINARY = "Atan2 BitwiseAnd BitwiseOr BitwiseXnor BitwiseXor Fmod Remainder"
_WINDOW = {"axes": REQUIRED, "sizes": REQUIRED}
_TYPED = {"data_type": REQUIRED, "init_type": REQUIRED}
_MEAN = {"reduction": ReductionType.Mean}
_SUM = {"reduction": ScatterReduction.Sum}
_CTC = {**_MEAN, "blank": 0, "outDataType": "UNDEFINED"}

GRAPHCORE_METHODS = {
    "call": Method("Call", 0, None, {"callee": REQUIRED}, counted=True),
    **dict(_row(kind) for kind in _UNARY.split()),
    **dict(_row(kind, 2) for kind in _BINARY.split()),
    **dict(
        [
            _row("Ctc", 4, **_CTC),
            _row("DepthToSpace", blocksize=REQUIRED, mode="DCR"),
            _row("DynamicAdd", 3, **_WINDOW),
            _row("DynamicSlice", 2, **_WINDOW, noOverlap=0),
            _row("DynamicUpdate", 3, **_WINDOW, noOverlap=0),
            _row("DynamicZero", 2, **_WINDOW),
            _row("GroupNormalization", 3, 3, num_groups=REQUIRED, epsilon=1e-5),
            _row("IdentityLoss", **_MEAN),
            _row("IncrementMod", increment=REQUIRED, modulus=REQUIRED),
            _row("Init", 0, shape=REQUIRED, **_TYPED, batch_axis=None),
            _row("L1", **{"lambda": REQUIRED}, **_MEAN),
            _row("Nll", 2, **_MEAN, ignoreIndex=None, inputIsLogProbability=False),
            _row("PrintTensor", print_gradient=1, title=""),
            _row("ReduceMedian", 1, 2, axes=None, keepdims=1),
            _row("Reshape", shape=REQUIRED),
            _row("Reverse", dimensions=REQUIRED),
            _row("Scale", scale=REQUIRED),
            _row("ScaledAdd", 2, scale0=1.0, scale1=1.0),
            _row("ScatterReduce", 2, axis_size=REQUIRED, axis=-1, **_SUM),
            _row("ShapedDropout", shape=REQUIRED, ratio=0.5),
            _row("Subsample", strides=REQUIRED),
        ]
    ),
}
