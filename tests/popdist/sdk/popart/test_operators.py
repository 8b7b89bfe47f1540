"""Each operator of ONNX computes what onnxruntime does."""

from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from popart_models import evaluate

import popart
from popart import operators
from popart.builder.opsets import method_name

RANDOM = np.random.default_rng(1)


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    return RANDOM.uniform(low, high, shape).astype(np.float32)


def integers(*values: Any) -> Any:
    return np.array(values, np.int64)


def bools(*shape: int) -> Any:
    return RANDOM.random(shape) < 0.5


class Case(NamedTuple):
    """A use of an operator: its inputs, the constants after them, and attributes."""

    kind: str
    inputs: list[Any]
    constants: list[Any] = []  # noqa: RUF012
    attributes: dict[str, Any] = {}  # noqa: RUF012
    version: int = 10
    outputs: int | None = None
    # Further inputs of the model, which graphs among the attributes take.
    captured: list[Any] = []  # noqa: RUF012


def graph_of(outer: str, *steps: str, parameters: int = 0) -> Any:
    """Return what makes a graph within a node.

    Args:
        outer: The tensor around it that is the second operand of each step.
        steps: The operators, of which each takes what the one before it makes.
        parameters: How many inputs it has: the number of the iteration, the condition,
            which is returned first, and the first operand; that is `outer` where there
            are none.
    """

    def make(builder: popart.Builder) -> popart.Builder:
        body = builder.createSubgraphBuilder()
        names = [body.addInputTensor("INT64", [])] if parameters else []
        names += [body.addUntypedInputTensor() for _ in range(1, parameters)]
        value = names[-1] if names else outer
        for step in steps:
            value = getattr(body.aiOnnx, step)([value, outer])
        for name in [*names[1:2], value]:
            body.addOutputTensor(name)
        return body

    return make


def product_of_two(builder: popart.Builder) -> popart.Builder:
    """Return a graph that multiplies its inputs, which are matrices."""
    body = builder.createSubgraphBuilder()
    names = [body.addUntypedInputTensor() for _ in range(2)]
    body.addOutputTensor(body.aiOnnx.matmul(names))
    return body


UNARY = {
    "Abs": (-2, 2),
    "Acos": (-1, 1),
    "Acosh": (1, 3),
    "Asin": (-1, 1),
    "Asinh": (-2, 2),
    "Atan": (-2, 2),
    "Atanh": (-0.9, 0.9),
    "Ceil": (-2, 2),
    "Cos": (-2, 2),
    "Cosh": (-2, 2),
    "Erf": (-2, 2),
    "Exp": (-2, 2),
    "Floor": (-2, 2),
    "Identity": (-2, 2),
    "Log": (0.1, 2),
    "Neg": (-2, 2),
    "Reciprocal": (0.1, 2),
    "Relu": (-2, 2),
    "Sigmoid": (-2, 2),
    "Sign": (-2, 2),
    "Sin": (-2, 2),
    "Sinh": (-2, 2),
    "Softplus": (-30, 30),
    "Softsign": (-2, 2),
    "Sqrt": (0.1, 2),
    "Tan": (-1, 1),
    "Tanh": (-2, 2),
}
REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum"]
NOT_FINITE = np.array([1, np.nan, np.inf, -np.inf], np.float32)
# Of the sequences of a batch, in time steps.
LENGTHS = np.array([4, 1, 3], np.int32)
IMAGE, KERNEL = floats(2, 4, 7, 6), floats(6, 2, 3, 2)

CASES = [
    *(Case(n, [floats(2, 3, low=a, high=b)]) for n, (a, b) in UNARY.items()),
    *(Case(n, [floats(2, 3), floats(3)]) for n in ("Add", "Sub", "Mul", "Div")),
    *(Case(n, [bools(2, 3), bools(3)]) for n in ("And", "Or", "Xor")),
    *(Case(n, [floats(2, 3), floats(1, 3)]) for n in ("Greater", "Less")),
    *(Case(n, [floats(2, 3), floats(3), floats(1)]) for n in ("Max", "Min", "Mean")),
    *(
        Case(f"Reduce{n}", [floats(2, 3, 4, low=0.1)], attributes=more)
        for n in [*REDUCTIONS, "SumSquare"]
        for more in ({}, {"axes": [0, 2], "keepdims": 0}, {"axes": [-1]})
    ),
    Case("Sum", [floats(2, 3), floats(3), floats(1)]),
    Case("Not", [bools(4)]),
    Case("Equal", [integers(1, 2, 3), integers(1, 0, 3)]),
    Case("Div", [integers(-7, 7), integers(2, 2)]),
    Case("Pow", [floats(4, low=0.1), floats(4)]),
    Case("Mod", [integers(-7, 7), integers(3, -3)]),
    Case("Mod", [floats(4), floats(4, low=0.5)], attributes={"fmod": 1}),
    Case("BitShift", [np.array([1, 8], np.uint8), np.array([2, 1], np.uint8)], [],
         {"direction": "LEFT"}, 11),
    Case("BitShift", [np.array([1, 8], np.uint8), np.array([2, 1], np.uint8)], [],
         {"direction": "RIGHT"}, 11),
    Case("Round", [np.array([0.5, 1.5, -2.5, 2.4], np.float32)], version=11),
    Case("IsNaN", [NOT_FINITE]),
    Case("IsInf", [NOT_FINITE]),
    Case("IsInf", [NOT_FINITE], attributes={"detect_negative": 0}),
    Case("IsInf", [NOT_FINITE], attributes={"detect_positive": 0}),
    Case("Cast", [floats(3)], attributes={"to": "INT32"}),
    Case("Cast", [floats(3)], attributes={"to": "FLOAT16"}),
    Case("Clip", [floats(9)], attributes={"max": 0.5, "min": -1.0}),
    Case("Clip", [floats(9)]),
    Case("Clip", [floats(9)], [np.float32(-1), np.float32(0.5)], version=11),
    Case("Elu", [floats(9)], attributes={"alpha": 0.7}),
    Case("HardSigmoid", [floats(9)], attributes={"alpha": 0.6, "beta": 0.4}),
    Case("LeakyRelu", [floats(9)], attributes={"alpha": 0.3}),
    Case("PRelu", [floats(2, 9), floats(9)]),
    Case("Selu", [floats(9)]),
    Case("Selu", [floats(9)], attributes={"alpha": 1.1, "gamma": 1.3}),
    Case("Shrink", [floats(9)], attributes={"bias": 0.2, "lambd": 1.0}),
    Case("ThresholdedRelu", [floats(9)], attributes={"alpha": 0.5}),
    Case("ThresholdedRelu", [NOT_FINITE]),
    Case("Where", [bools(2, 3), floats(2, 3), floats(3)]),
    Case("MatMul", [floats(2, 3, 4), floats(4, 5)]),
    Case("Gemm", [floats(2, 3), floats(3, 4), floats(4)]),
    Case("Gemm", [floats(3, 2), floats(4, 3), floats(2, 1)],
         attributes={"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}),
    Case("ArgMax", [floats(2, 3)], attributes={"axis": 1}),
    Case("ArgMin", [floats(2, 3)], attributes={"axis": -1, "keepdims": 0}, version=11),
    Case("CumSum", [floats(2, 3)], [np.array(1, np.int64)], version=11),
    Case("CumSum", [floats(2, 3)], [np.array(0, np.int64)],
         {"exclusive": 1, "reverse": 1}, 11),
    Case("TopK", [floats(2, 5)], [integers(3)], outputs=2),
    Case("TopK", [floats(5, 2)], attributes={"k": 3, "axis": 0}, version=9, outputs=2),
    Case("TopK", [floats(2, 5)], [integers(2)], {"largest": 0}, 11, 2),
    Case("Concat", [floats(2, 3), floats(2, 1)], attributes={"axis": 1}),
    Case("Concat", [floats(2, 3), floats(1, 3)], attributes={"axis": -2}, version=11),
    Case("Constant", []),
    Case("ConstantOfShape", [], [integers(2, 3)], {"value": np.array([3], np.int32)}),
    Case("DepthToSpace", [floats(2, 8, 2, 3)], attributes={"blocksize": 2}),
    Case("DepthToSpace", [floats(2, 8, 2, 3)], [], {"blocksize": 2, "mode": "CRD"}, 11),
    Case("SpaceToDepth", [floats(2, 2, 4, 6)], attributes={"blocksize": 2}),
    Case("Expand", [floats(3, 1)], [integers(2, 1, 4)]),
    Case("Flatten", [floats(2, 3, 4)]),
    Case("Flatten", [floats(2, 3, 4)], attributes={"axis": 0}),
    Case("Gather", [floats(3, 4), integers([2, 0], [1, 1])]),
    Case("Gather", [floats(3, 4), integers(-1, 0)], [], {"axis": 1}, 11),
    Case("GatherElements", [floats(3, 4), integers([0, 1, 2, 0])], version=11),
    Case("OneHot", [integers(0, 3, -1)], [np.array([4], np.int64), floats(2)]),
    Case("OneHot", [integers([0, 1])], [np.array([3], np.int64), floats(2)],
         {"axis": 1}),
    Case("Pad", [floats(2, 3)], attributes={"pads": [0, 1, 2, 0], "value": 1.5}),
    Case("Pad", [floats(1, 1, 4, 5)],
         attributes={"pads": [0, 0, 1, 2, 0, 0, 0, 1], "mode": "reflect"}),
    Case("Pad", [floats(4, 5)], attributes={"pads": [1, 2, 0, 1], "mode": "edge"}),
    Case("Pad", [floats(2, 3)], [integers(0, 1, 2, 0), np.float32(2)], version=11),
    Case("Range", [], [np.float32(1), np.float32(3), np.float32(0.5)], version=11),
    Case("Reshape", [floats(2, 3, 4)], [integers(0, -1)]),
    Case("Scatter", [floats(3, 3), integers([1, 0, 2]), floats(1, 3)]),
    Case("ScatterElements", [floats(3, 3), integers([1], [2], [0]), floats(3, 1)], [],
         {"axis": 1}, 11),
    Case("Shape", [floats(2, 3)]),
    Case("Size", [floats(2, 3)]),
    Case("Slice", [floats(5, 6)], [integers(1, -3), integers(4, 99)]),
    Case("Slice", [floats(5, 6)], [integers(-1), integers(-99), integers(1),
         integers(-2)]),
    Case("Slice", [floats(5, 6)], [integers(4), integers(-(1 << 40)), integers(0),
         integers(-1)]),
    Case("Slice", [floats(5, 6)], [], {"starts": [1], "ends": [-1], "axes": [1]}, 9),
    Case("Split", [floats(6, 2)], outputs=3),
    Case("Split", [floats(2, 6)], [], {"axis": 1, "split": [1, 3, 2]}, outputs=3),
    Case("Squeeze", [floats(1, 3, 1)]),
    Case("Squeeze", [floats(1, 3, 1)], attributes={"axes": [0]}),
    Case("Tile", [floats(2, 3)], [integers(2, 1)]),
    Case("Transpose", [floats(2, 3, 4)]),
    Case("Transpose", [floats(2, 3, 4)], attributes={"perm": [1, 0, 2]}),
    Case("Unsqueeze", [floats(2, 3)], attributes={"axes": [0, 3]}),
    Case("Conv", [IMAGE, floats(3, 4, 2, 2)]),
    Case("Conv", [IMAGE, KERNEL, floats(6)],
         attributes={"group": 2, "strides": [2, 1], "pads": [1, 0, 0, 1],
                     "dilations": [1, 2]}),
    Case("Conv", [floats(1, 2, 9), floats(3, 2, 3)],
         attributes={"pads": [1, 1], "strides": [2]}),
    Case("ConvTranspose", [floats(1, 2, 4, 3), floats(2, 3, 3, 2)],
         attributes={"strides": [2, 2], "pads": [1, 0, 1, 0],
                     "output_padding": [1, 0]}),
    Case("MaxPool", [IMAGE], attributes={"kernel_shape": [2, 3], "strides": [2, 1]},
         outputs=1),
    Case("MaxPool", [IMAGE], attributes={"kernel_shape": [3, 3],
         "pads": [1, 0, 0, 2]}, outputs=1),
    Case("AveragePool", [IMAGE], attributes={"kernel_shape": [3, 2],
         "pads": [1, 1, 1, 1]}),
    Case("AveragePool", [IMAGE], attributes={"kernel_shape": [3, 2],
         "pads": [0, 1, 1, 0]}),
    Case("AveragePool", [IMAGE], attributes={"kernel_shape": [3, 2],
         "pads": [0, 1, 1, 0], "count_include_pad": 1}),
    Case("GlobalAveragePool", [IMAGE]),
    Case("GlobalMaxPool", [IMAGE]),
    Case("BatchNormalization", [IMAGE, floats(4), floats(4), floats(4),
         floats(4, low=0.1)], attributes={"epsilon": 1e-3}, outputs=1),
    Case("Dropout", [floats(4)], attributes={"ratio": 0.3}, outputs=1),
    Case("InstanceNormalization", [IMAGE, floats(4), floats(4)]),
    Case("LRN", [IMAGE], attributes={"size": 3, "alpha": 0.1, "bias": 2.0}),
    Case("LpNormalization", [floats(2, 3)]),
    Case("LpNormalization", [floats(2, 3)], attributes={"axis": 0, "p": 1}),
    Case("MeanVarianceNormalization", [IMAGE]),
    *(
        Case(n, [floats(2, 3, 4)], attributes=more)
        for n in ("Softmax", "LogSoftmax", "Hardmax")
        for more in ({}, {"axis": 2}, {"axis": 0})
    ),
    Case("LSTM", [floats(4, 2, 3), floats(1, 20, 3), floats(1, 20, 5)],
         attributes={"hidden_size": 5}, outputs=3),
    Case("LSTM", [floats(4, 2, 3), floats(1, 20, 3), floats(1, 20, 5), floats(1, 40)],
         attributes={"hidden_size": 5}, outputs=1),
    Case("LSTM", [floats(4, 3, 2), floats(1, 20, 2), floats(1, 20, 5), floats(1, 40),
         LENGTHS, floats(1, 3, 5), floats(1, 3, 5)],
         attributes={"hidden_size": 5}, outputs=3),
    Case("GRU", [floats(4, 3, 2), floats(1, 15, 2), floats(1, 15, 5)],
         attributes={"hidden_size": 5}, outputs=2),
    *(
        Case("GRU", [floats(4, 3, 2), floats(1, 15, 2), floats(1, 15, 5), floats(1, 30),
             LENGTHS, floats(1, 3, 5)],
             attributes={"hidden_size": 5, "linear_before_reset": resets}, outputs=2)
        for resets in (0, 1)
    ),
    *(
        Case(kind, [floats(4, 3, 2), floats(2, gates * 5, 2), floats(2, gates * 5, 5),
             floats(2, 2 * gates * 5), LENGTHS, *[floats(2, 3, 5)] * states],
             attributes={"hidden_size": 5, "direction": "bidirectional"},
             outputs=1 + states)
        for kind, gates, states in (("GRU", 3, 1), ("LSTM", 4, 2), ("RNN", 1, 1))
    ),
    *(
        Case(kind, [floats(4, 3, 2), floats(1, gates * 5, 2), floats(1, gates * 5, 5),
             floats(1, 2 * gates * 5), LENGTHS],
             attributes={"hidden_size": 5, "direction": "reverse"}, outputs=1)
        for kind, gates in (("GRU", 3), ("LSTM", 4), ("RNN", 1))
    ),
    Case("RNN", [floats(4, 3, 2), floats(2, 5, 2), floats(2, 5, 5)],
         attributes={"hidden_size": 5, "direction": "bidirectional",
         "activations": ["Relu", "Sigmoid"]}, outputs=2),
    Case("LSTM", [floats(4, 3, 2), floats(1, 20, 2), floats(1, 20, 5)],
         attributes={"hidden_size": 5, "activations": ["Sigmoid", "Softsign",
         "Relu"]}, outputs=3),
    *(
        Case("If", [np.array(condition)], outputs=1, captured=[floats(2, 3)],
             attributes={"then_branch": graph_of("input/1", "mul", "add"),
             "else_branch": graph_of("input/1", "sub")})
        for condition in (True, False)
    ),
    *(
        Case("Loop", [np.array(trips, np.int64), np.array(condition), floats(2, 2)],
             attributes={"body": graph_of("input/3", "matmul", "sub", parameters=3)},
             outputs=1, captured=[floats(2, 2)])
        for trips, condition in ((3, True), (0, True), (3, False))
    ),
    Case("Scan", [floats(2, 2), floats(3, 2, 2)],
         attributes={"body": product_of_two, "num_scan_inputs": 1}, outputs=1),
    *(
        Case("Resize", [IMAGE], [np.array(scales, np.float32)], {"mode": mode})
        for scales, modes in (
            ([1, 1, 2, 3], ("nearest", "linear")),
            ([1, 1, 1, 1.3], ("nearest", "linear")),
            ([1, 1, 0.5, 0.6], ("linear",)),
        )
        for mode in modes
    ),
    *(
        Case("Resize", [IMAGE], [np.zeros(0, np.float32), *how],
             {"mode": mode, "coordinate_transformation_mode": places}, 11)
        for how in (
            [np.array([1, 1, 1.6, 2], np.float32)],
            [np.array([1, 1, 0.4, 0.5], np.float32)],
            [np.zeros(0, np.float32), integers(2, 4, 10, 3)],
            [np.zeros(0, np.float32), integers(2, 4, 1, 1)],
        )
        for mode, places in (
            ("linear", "half_pixel"),
            ("linear", "pytorch_half_pixel"),
            ("linear", "align_corners"),
            ("linear", "asymmetric"),
            ("nearest", "half_pixel"),
            ("nearest", "tf_half_pixel_for_nn"),
        )
    ),
    *(
        Case("Resize", [IMAGE], [np.zeros(0, np.float32),
             np.array([1, 1, 0.5, 1.5], np.float32)],
             {"mode": "nearest", "nearest_mode": rounding}, 11)
        for rounding in ("round_prefer_ceil", "floor", "ceil")
    ),
    Case("Upsample", [IMAGE], [np.array([1, 1, 2, 3], np.float32)], {}, 9),
    Case("Upsample", [IMAGE], [], {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "linear"},
         7),
]  # fmt: skip


def built(case: Case) -> tuple[popart.Builder, dict[str, Any], list[str]]:
    """Return a builder with the operator alone, its inputs and its outputs."""
    builder = popart.Builder(opsets={"ai.onnx": case.version})
    inputs = {}
    for array in [*case.inputs, *case.captured]:
        inputs[builder.addInputTensor(popart.TensorInfo(array))] = array
    operands = list(inputs)[: len(case.inputs)]
    attributes = {
        name: value(builder) if callable(value) else value
        for name, value in case.attributes.items()
    }
    method = getattr(builder.aiOnnx, method_name(case.kind))
    if case.kind == "Constant":
        outputs = method(np.array([1.5, 2], np.float32))
    else:
        constants = [builder.aiOnnx.constant(np.asarray(c)) for c in case.constants]
        counted = {"num_outputs": case.outputs} if case.kind in COUNTED else {}
        outputs = method([*operands, *constants], **counted, **attributes)
    outputs = [outputs] if isinstance(outputs, str) else outputs
    for name in outputs:
        builder.addOutputTensor(name)
    return builder, inputs, outputs


COUNTED = (
    *("BatchNormalization", "Dropout", "GRU", "If", "LSTM", "Loop", "MaxPool", "RNN"),
    *("Scan", "Split"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_an_operator_computes_what_onnxruntime_does(case: Case) -> None:
    builder, inputs, outputs = built(case)

    found = evaluate(builder, inputs, outputs)

    model = builder.getModelProto()
    onnx.checker.check_model(onnx.load_model_from_string(model))
    oracle = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = oracle.run(outputs, inputs)
    assert len(found) == len(expected) == len(outputs)
    for name, ours, theirs in zip(outputs, found, expected, strict=True):
        assert builder.getTensorShape(name) == list(theirs.shape)
        assert builder.getTensorDtypeString(name) == theirs.dtype.name
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("add", np.add),
        ("sub", np.subtract),
        ("mul", np.multiply),
        ("div", np.floor_divide),
        ("mod", np.mod),
        ("max", np.maximum),
        ("min", np.minimum),
        ("less", np.less),
        ("greater", np.greater),
        ("equal", np.equal),
    ],
)
def test_integers_without_a_sign_are_computed_with(
    kind: str, of: Any, dtype: Any
) -> None:
    """As masks and indices of programs are; torch itself computes little with them."""
    most = np.iinfo(dtype).max
    a, b = np.array([3, 2, most], dtype), np.array([2, 3, 1], dtype)

    builder = popart.Builder(opsets={"ai.onnx": 10})
    names = [builder.addInputTensor(popart.TensorInfo(array)) for array in (a, b)]
    result = getattr(builder.aiOnnx, kind)(names)
    (found,) = evaluate(builder, dict(zip(names, (a, b), strict=True)), [result])

    expected = of(a, b)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_integers_without_a_sign_are_indices() -> None:
    """ONNX has no such indices, but PopART's BERT."""
    builder = popart.Builder()
    rows = builder.addInputTensor("UINT32", [4, 2])
    places = builder.addInputTensor("UINT32", [3])
    picked = builder.aiOnnx.gather([rows, places])
    best = builder.aiOnnx.argmax([rows], axis=0, keepdims=0)
    values = np.array([[1, 8], [9, 2], [3, 4], [5, 6]], np.uint32)
    inputs = {rows: values, places: np.array([3, 0, 3], np.uint32)}

    found, indices = evaluate(builder, inputs, [picked, best])

    np.testing.assert_array_equal(found, values[[3, 0, 3]])
    assert (found.dtype, indices.tolist()) == (np.uint32, [1, 0])
    assert builder.getTensorDtypeString(picked) == "uint32"
    assert builder.getTensorDtypeString(best) == "int64"


def test_indices_are_compared_with_labels_of_32_bits() -> None:
    builder = popart.Builder()
    scores = builder.addInputTensor("FLOAT", [2, 3])
    labels = builder.addInputTensor("INT32", [2])
    best = builder.aiOnnx.argmax([scores], axis=1, keepdims=0)
    equal = builder.aiOnnx.equal([best, labels])
    values = np.array([[1, 3, 2], [6, 5, 4]], np.float32)

    (found,) = evaluate(
        builder, {scores: values, labels: np.array([1, 1], np.int32)}, [equal]
    )

    assert found.tolist() == [True, False]


def test_every_operator_of_onnx_has_a_case() -> None:
    assert {case.kind for case in CASES} == set(operators.ONNX)


X, Y = floats(2, 3), floats(2, 3)
WHOLE = np.array([[5, 3, 6], [1, 2, 4]], np.int32)
BITS = np.array([[1, 3, 2], [1, 2, 6]], np.int32)
OFFSET = np.array([1], np.uint32)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)

# What numpy or a formula says of the operators that ONNX does not have.
GRAPHCORE: list[tuple[str, list[Any], dict[str, Any], Any]] = [
    ("atan2", [X, Y], {}, np.arctan2(X, Y)),
    ("bitwiseand", [WHOLE, BITS], {}, WHOLE & BITS),
    ("bitwisenot", [WHOLE], {}, ~WHOLE),
    ("bitwiseor", [WHOLE, BITS], {}, WHOLE | BITS),
    ("bitwisexnor", [WHOLE, BITS], {}, ~(WHOLE ^ BITS)),
    ("bitwisexor", [WHOLE, BITS], {}, WHOLE ^ BITS),
    ("detach", [X], {}, X),
    ("dynamicadd", [ROWS, OFFSET, np.ones((2, 3), np.float32)],
     {"axes": [0], "sizes": [2]}, ROWS + np.array([[0], [1], [1], [0]])),
    ("dynamicslice", [ROWS, OFFSET], {"axes": [0], "sizes": [2]}, ROWS[1:3]),
    ("dynamicupdate", [ROWS, OFFSET, -np.ones((2, 3), np.float32)],
     {"axes": [0], "sizes": [2]}, np.vstack([ROWS[:1], -np.ones((2, 3)), ROWS[3:]])),
    ("dynamiczero", [ROWS, OFFSET], {"axes": [0], "sizes": [2]},
     ROWS * np.array([[1], [0], [0], [1]])),
    ("expm1", [X], {}, np.expm1(X)),
    ("fmod", [X, Y], {}, np.fmod(X, Y)),
    ("gelu", [X], {},
     0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))),
    ("identityloss", [X], {}, X.mean()),
    ("identityloss", [X], {"reduction": popart.ReductionType.NoReduction}, X),
    ("incrementmod", [np.array([5, 1], np.float32)],
     {"increment": 3.0, "modulus": 4.0}, [0, 0]),
    ("l1loss", [X], {"lambda": 0.5}, 0.5 * np.abs(X).mean()),
    ("l1loss", [X], {"lambda": 0.5, "reduction": popart.ReductionType.Sum},
     0.5 * np.abs(X).sum()),
    ("log1p", [X * 0.4], {}, np.log1p(X * 0.4)),
    ("nop", [X], {}, X),
    ("remainder", [X, Y], {}, np.mod(X, Y)),
    ("reshape", [X], {"shape": [3, -1]}, X.reshape(3, 2)),
    ("reverse", [ROWS], {"dimensions": [0]}, ROWS[::-1]),
    ("round", [X], {}, np.round(X)),
    ("scale", [X], {"scale": 0.3}, X * np.float32(0.3)),
    ("scaledadd", [X, Y], {"scale0": 0.3, "scale1": 2.0}, X * 0.3 + Y * 2),
    ("scatterreduce", [ROWS, np.array([[1], [0], [1], [2]], np.int32)],
     {"axis_size": 3, "axis": 0}, [ROWS[1], ROWS[0] + ROWS[2], ROWS[3]]),
    ("shapeddropout", [X], {"shape": [2, 1]}, X),
    ("subsample", [ROWS], {"strides": [2, 3]}, ROWS[::2, ::3]),
    ("swish", [X], {}, X / (1 + np.exp(-X))),
    ("depthtospace", [np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)],
     {"blocksize": 2, "mode": "CRD"}, [[[[0, 1], [2, 3]]]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arrays", "attributes", "expected"),
    GRAPHCORE,
    ids=[f"{case[0]}-{i}" for i, case in enumerate(GRAPHCORE)],
)
def test_an_operator_of_graphcore_computes_its_formula(
    name: str, arrays: list[Any], attributes: dict[str, Any], expected: Any
) -> None:
    builder = popart.Builder()
    inputs = {builder.addInputTensor(popart.TensorInfo(a)): a for a in arrays}
    output = getattr(builder.aiGraphcore, name)(list(inputs), **attributes)

    (found,) = evaluate(builder, inputs, [output])

    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


PROBABILITIES = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], np.float32)


@pytest.mark.parametrize(
    ("reduction", "labels", "ignored", "expected"),
    [
        ("Sum", [2, 0], None, -np.log(0.5) - np.log(0.6)),
        ("Mean", [2, 0], None, (-np.log(0.5) - np.log(0.6)) / 2),
        ("NoReduction", [2, 0], None, [-np.log(0.5), -np.log(0.6)]),
        ("Mean", [2, 0], 0, -np.log(0.5)),
        ("NoReduction", [2, 0], 0, [-np.log(0.5), 0]),
        ("Sum", [2, 0xFFFFFFFF], -1, -np.log(0.5)),
        # All labels are ignored.
        ("Mean", [3, 3], 3, 0),
        ("Sum", [3, 3], 3, 0),
    ],
)
@pytest.mark.parametrize("logarithms", [False, True])
def test_the_likelihood_ignores_labels_and_is_reduced(
    reduction: str, labels: list[int], ignored: int | None, expected: Any,
    logarithms: bool,
) -> None:  # fmt: skip
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 3])
    label = builder.addInputTensor("UINT32", [2])
    loss = builder.aiGraphcore.nllloss(
        [x, label], popart.ReductionType[reduction], ignored, logarithms
    )
    given = np.log(PROBABILITIES) if logarithms else PROBABILITIES

    inputs = {x: given, label: np.array(labels, np.uint32)}

    (found,) = evaluate(builder, inputs, [loss])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "logarithms", "expected"),
    [
        # The smallest probability of PopART: 1e-7, and 6.104e-5 of FLOAT16.
        (np.float32, False, [16.118096, -np.log(0.6)]),
        (np.float16, False, [9.703967, -np.log(0.6)]),
        (np.float32, True, [0, -np.log(0.6)]),
    ],
)
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_that_is_no_class_has_no_probability(
    dtype: Any, logarithms: bool, expected: list[float], label: int
) -> None:
    """PopART's BERT draws such labels as its generated data."""
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo(dtype, [2, 3]))
    labels = builder.addInputTensor("INT32", [2])
    loss = builder.aiGraphcore.nllloss(
        [x, labels],
        popart.ReductionType.NoReduction,
        inputIsLogProbability=logarithms,
    )
    given = np.log(PROBABILITIES) if logarithms else PROBABILITIES
    inputs = {x: given.astype(dtype), labels: np.array([label, 0], np.int32)}

    with pytest.warns(UserWarning, match=r"none of its classes, 0 to 2\. PopART gives"):
        (found,) = evaluate(builder, inputs, [loss])

    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_labels_that_are_not_as_many_as_their_rows_are_refused() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 3], "x")
    label = builder.addInputTensor("INT32", [1], "label")

    with pytest.raises(
        popart.popart_exception, match=r"x, label: there are 1 labels for 2 rows\."
    ):
        builder.aiGraphcore.nllloss([x, label])


@pytest.mark.parametrize("reduction", ["Sum", "Mean", "NoReduction"])
@pytest.mark.parametrize("blank", [0, 2])
def test_the_ctc_loss_and_its_gradient_are_those_of_torch(
    reduction: str, blank: int
) -> None:
    scores = floats(6, 4, 3)
    targets = np.where(RANDOM.random((4, 2)) < 0.5, 1, 2 - blank).astype(np.uint32)
    lengths = [np.array(n, np.uint32) for n in ([6, 6, 5, 4], [2, 1, 0, 2])]
    builder = popart.Builder()
    arrays = [scores, targets, *lengths]
    inputs = {builder.addInputTensor(popart.TensorInfo(a)): a for a in arrays}
    x, *rest = inputs
    loss = builder.aiGraphcore.ctcloss(
        [builder.aiOnnx.logsoftmax([x], 2), *rest],
        popart.ReductionType[reduction],
        blank,
    )
    total = builder.aiGraphcore.identityloss([loss], popart.ReductionType.Sum)
    gradient = popart.reservedGradientPrefix() + x
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, [loss, gradient]), total),
        *(popart.ConstSGD(0.1), popart.DeviceManager().createCpuDevice()),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO(inputs, anchors))

    leaf = torch.tensor(scores, requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        leaf.log_softmax(2),
        *(torch.from_numpy(a.astype(np.int64)) for a in (targets, *lengths)),
        blank=blank,
        reduction="none" if reduction == "NoReduction" else reduction.lower(),
    )
    expected.sum().backward()
    np.testing.assert_allclose(anchors[loss], expected.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(anchors[gradient], leaf.grad.numpy(), atol=1e-6)


def test_the_ctc_loss_of_integers_and_in_another_type() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [6, 4, 3])
    names = [builder.addInputTensor("UINT32", shape) for shape in ([4, 2], [4], [4])]
    signed = builder.addInputTensor("INT32", [4])

    half = builder.aiGraphcore.ctcloss([x, *names], outDataType="FLOAT16")

    assert builder.getTensorDtypeString(half) == "float16"
    assert builder.getTensorShape(half) == []
    with pytest.raises(popart.popart_exception, match=r"lengths must be UINT32\.$"):
        builder.aiGraphcore.ctcloss([x, *names[:2], signed])
    with pytest.raises(popart.popart_exception, match=r"the loss hold fractions\.$"):
        builder.aiGraphcore.ctcloss([x, *names], outDataType="INT32")


def test_the_median_is_the_lower_one_with_its_index() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 4])
    outputs = builder.aiGraphcore.reducemedian([x], axes=[1], keepdims=0)
    rows = np.array([[4, 1, 3, 2], [8, 9, 7, 6]], np.float32)

    values, indices = evaluate(builder, {x: rows}, outputs)

    assert values.tolist() == [2, 7]
    assert indices.tolist() == [3, 2]


def test_group_normalization_is_that_of_torch() -> None:
    builder = popart.Builder()
    x, scale, bias = floats(2, 4, 3), floats(4), floats(4)
    inputs = {builder.addInputTensor(popart.TensorInfo(a)): a for a in (x, scale, bias)}
    outputs = builder.aiGraphcore.groupnormalization(list(inputs), 2, 1e-3)

    y, mean, deviation = evaluate(builder, inputs, outputs)

    expected = torch.nn.functional.group_norm(
        *(torch.from_numpy(x), 2, torch.from_numpy(scale), torch.from_numpy(bias)), 1e-3
    )
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)
    groups = x.reshape(4, 6)
    np.testing.assert_allclose(mean, groups.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deviation, 1 / np.sqrt(groups.var(1) + 1e-3), rtol=1e-5)


def test_printtensor_prints(capsys: pytest.CaptureFixture[str]) -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    output = builder.aiGraphcore.printtensor([x], title="scores")
    assert capsys.readouterr().out == ""

    evaluate(builder, {x: np.array([1, 2], np.float32)}, [output])

    assert capsys.readouterr().out == "scores: [1. 2.]\n"


def test_init_makes_zeros_and_refuses_undefined_values() -> None:
    builder = popart.Builder()
    init, kinds = builder.aiGraphcore.init, popart.InitType
    output = init([2], popart.DataType.INT32, kinds.Zero)

    assert builder.getTensorDtypeString(output) == "int32"
    with pytest.raises(popart.popart_exception, match=r"has no defined values"):
        init([2], popart.DataType.INT32, kinds.NoInit)


def test_every_operator_of_graphcore_has_a_method() -> None:
    from popart.builder.graphcore_methods import GRAPHCORE_METHODS

    kinds = {method.kind for method in GRAPHCORE_METHODS.values()}

    assert kinds == set(operators.GRAPHCORE)


@pytest.mark.parametrize(
    ("kind", "version", "scales"),
    [("Resize", 10, [1, 1, 0.5, 0.6]), ("Upsample", 9, [1, 1, 1.7, 0.3])],
)
def test_older_versions_resize_to_the_element_before(
    kind: str, version: int, scales: list[float]
) -> None:
    """As PopART and torch do; onnxruntime takes the one after, to make less of them."""
    case = Case(kind, [IMAGE], [np.array(scales, np.float32)], version=version)

    (ours,) = evaluate(*built(case))

    image = torch.from_numpy(IMAGE)
    theirs = torch.nn.functional.interpolate(image, scale_factor=tuple(scales[2:]))
    np.testing.assert_array_equal(ours, theirs.numpy())


UNUSUAL = {
    "GRU": Case(
        "GRU",
        [floats(4, 2, 3), floats(1, 15, 3), floats(1, 15, 5)],
        attributes={"hidden_size": 5, "clip": 1.0},
        outputs=1,
    ),
    "Resize": Case(
        "Resize",
        [IMAGE],
        [np.zeros(0, np.float32), np.ones(4, np.float32)],
        {"mode": "cubic"},
        11,
    ),
    "Upsample": Case(
        "Upsample", [IMAGE], [np.ones(4, np.float32)], {"mode": "cubic"}, 9
    ),
    "LSTM": Case(
        "LSTM",
        [floats(4, 2, 3), floats(1, 20, 3), floats(1, 20, 5)],
        attributes={"hidden_size": 5, "activations": ["Affine", "Tanh", "Tanh"]},
        outputs=1,
    ),
    "ConvTranspose": Case(
        "ConvTranspose",
        [floats(1, 2, 4, 3), floats(2, 3, 3, 2)],
        attributes={"pads": [1, 0, 0, 0]},
    ),
    "MaxPool": Case("MaxPool", [IMAGE], attributes={"kernel_shape": [2, 2]}, outputs=2),
    "Scan": Case(
        *("Scan", [floats(2, 2), floats(3, 2, 2)], []),
        *({"body": product_of_two, "num_scan_inputs": 1}, 8, 1),
    ),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_forms_of_an_operator_that_are_not_available_are_refused(kind: str) -> None:
    with pytest.raises(popart.popart_exception, match=rf"^{kind} .*(here)\b"):
        built(UNUSUAL[kind])
