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


_WINDOW = {"axes": REQUIRED, "sizes": REQUIRED}

GRAPHCORE_METHODS = {
    "atan2": Method("Atan2", 2, 2),
    "bitwiseand": Method("BitwiseAnd", 2, 2),
    "bitwisenot": Method("BitwiseNot"),
    "bitwiseor": Method("BitwiseOr", 2, 2),
    "bitwisexnor": Method("BitwiseXnor", 2, 2),
    "bitwisexor": Method("BitwiseXor", 2, 2),
    "call": Method("Call", 0, None, {"callee": REQUIRED}, counted=True),
    "ctcloss": Method(
        "Ctc",
        4,
        4,
        {"reduction": ReductionType.Mean, "blank": 0, "outDataType": "UNDEFINED"},
    ),
    "depthtospace": Method(
        "DepthToSpace", attributes={"blocksize": REQUIRED, "mode": "DCR"}
    ),
    "detach": Method("Detach"),
    "dynamicadd": Method("DynamicAdd", 3, 3, _WINDOW),
    "dynamicslice": Method("DynamicSlice", 2, 2, {**_WINDOW, "noOverlap": 0}),
    "dynamicupdate": Method("DynamicUpdate", 3, 3, {**_WINDOW, "noOverlap": 0}),
    "dynamiczero": Method("DynamicZero", 2, 2, _WINDOW),
    "expm1": Method("Expm1"),
    "fmod": Method("Fmod", 2, 2),
    "gelu": Method("Gelu"),
    "groupnormalization": Method(
        "GroupNormalization", 3, 3, {"num_groups": REQUIRED, "epsilon": 1e-5}, 3
    ),
    "identityloss": Method(
        "IdentityLoss", attributes={"reduction": ReductionType.Mean}
    ),
    "incrementmod": Method(
        "IncrementMod", attributes={"increment": REQUIRED, "modulus": REQUIRED}
    ),
    "init": Method(
        "Init",
        0,
        0,
        {
            "shape": REQUIRED,
            "data_type": REQUIRED,
            "init_type": REQUIRED,
            "batch_axis": None,
        },
    ),
    "l1loss": Method(
        "L1", attributes={"lambda": REQUIRED, "reduction": ReductionType.Mean}
    ),
    "log1p": Method("Log1p"),
    "nllloss": Method(
        "Nll",
        2,
        2,
        {
            "reduction": ReductionType.Mean,
            "ignoreIndex": None,
            "inputIsLogProbability": False,
        },
    ),
    "nop": Method("Nop"),
    "printtensor": Method("PrintTensor", attributes={"print_gradient": 1, "title": ""}),
    "reducemedian": Method(
        "ReduceMedian", attributes={"axes": None, "keepdims": 1}, outputs=2
    ),
    "remainder": Method("Remainder", 2, 2),
    "reshape": Method("Reshape", attributes={"shape": REQUIRED}),
    "reverse": Method("Reverse", attributes={"dimensions": REQUIRED}),
    "round": Method("Round"),
    "scale": Method("Scale", attributes={"scale": REQUIRED}),
    "scaledadd": Method("ScaledAdd", 2, 2, {"scale0": 1.0, "scale1": 1.0}),
    "scatterreduce": Method(
        "ScatterReduce",
        2,
        2,
        {"axis_size": REQUIRED, "axis": -1, "reduction": ScatterReduction.Sum},
    ),
    "shapeddropout": Method(
        "ShapedDropout", attributes={"shape": REQUIRED, "ratio": 0.5}
    ),
    "subsample": Method("Subsample", attributes={"strides": REQUIRED}),
    "swish": Method("Swish"),
}
