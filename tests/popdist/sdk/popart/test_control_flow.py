"""Graphs within nodes: branches, loops and calls, their shapes and gradients."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from popart_models import device, evaluate, options, weights_of

import popart
import popdist.popart
from tests.popdist.sdk.torch_instances import results

EYE = np.eye(2, dtype=np.float32)
X = np.array([[1, 2], [3, 4]], np.float32)


def constant(builder: popart.Builder, value: Any, dtype: Any) -> str:
    name: str = builder.aiOnnx.constant(np.array(value).astype(dtype))
    return name


def loop(
    builder: popart.Builder, start: str, add: str, trips: int, below: float = 1e9
) -> list[str]:
    """Add a loop that adds a tensor to another, and stacks sums and their doubles.

    It ends when the first element of the sum is not below a number any more.
    """
    body = builder.createSubgraphBuilder()
    body.addInputTensor("INT64", [])
    body.addUntypedInputTensor("condition")
    carried = body.addUntypedInputTensor(start)
    total = body.aiOnnx.add([carried, add])
    double = body.aiOnnx.add([total, total])
    most = body.aiOnnx.constant(np.array(below, np.float32))
    first = body.aiOnnx.reducemin([total], axes=[0, 1], keepdims=0)
    for name in (body.aiOnnx.less([first, most]), total, total, double):
        body.addOutputTensor(name)
    trip_count = constant(builder, trips, np.int64)
    names: list[str] = builder.aiOnnx.loop(
        [trip_count, constant(builder, True, bool), start], 3, body
    )
    return names


def test_a_loop_stacks_further_outputs_as_in_onnxruntime() -> None:
    builder = popart.Builder()
    x, y = (builder.addInputTensor(popart.TensorInfo(X)) for _ in range(2))
    names = loop(builder, x, y, 3)
    for name in names:
        builder.addOutputTensor(name)

    ours = evaluate(builder, {x: X, y: EYE}, names)

    model = builder.getModelProto()
    onnx.checker.check_model(onnx.load_model_from_string(model))
    oracle = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for found, expected in zip(ours, oracle.run(names, {x: X, y: EYE}), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert [builder.getTensorShape(name) for name in names] == [
        [2, 2],
        [3, 2, 2],
        [3, 2, 2],
    ]


@pytest.mark.parametrize(("below", "runs"), [(3, 2), (0, 1), (100, 5)])
def test_a_loop_that_ends_early_leaves_zeros(below: float, runs: int) -> None:
    builder = popart.Builder()
    x, y = (builder.addInputTensor(popart.TensorInfo(X)) for _ in range(2))
    names = loop(builder, x, y, 5, below)

    total, sums, doubles = evaluate(builder, {x: X, y: X * 0 + 1}, names)

    steps = np.zeros((5, 2, 2), np.float32)
    steps[:runs] = [X + number for number in range(1, runs + 1)]
    np.testing.assert_array_equal(total, X + runs)
    np.testing.assert_array_equal(sums, steps)
    np.testing.assert_array_equal(doubles, 2 * steps)


def scan(
    builder: popart.Builder, state: str, rows: str, **attributes: list[int]
) -> list[str]:
    """Return the sum of a state and all slices, and each sum on the way, joined."""
    body = builder.createSubgraphBuilder()
    total = body.aiOnnx.add([body.addUntypedInputTensor() for _ in range(2)])
    for name in (total, total):
        body.addOutputTensor(name)
    names: list[str] = builder.aiOnnx.scan([state, rows], 2, body, 1, **attributes)
    return names


@pytest.mark.parametrize("last_first", [0, 1])
@pytest.mark.parametrize("joined_last_first", [0, 1])
def test_a_scan_joins_outputs_along_an_axis_that_they_have(
    last_first: int, joined_last_first: int
) -> None:
    builder = popart.Builder()
    state = builder.addInputTensor("FLOAT", [2, 1])
    rows = builder.addInputTensor("FLOAT", [2, 3, 1])
    names = scan(
        *(builder, state, rows),
        scan_input_axes=[1],
        scan_input_directions=[last_first],
        scan_output_axes=[1],
        scan_output_directions=[joined_last_first],
    )
    values = np.array([[[1], [2], [3]], [[4], [5], [6]]], np.float32)
    start = np.array([[1], [0]], np.float32)

    total, sums = evaluate(builder, {state: start, rows: values}, names)

    order = [2, 1, 0] if last_first else [0, 1, 2]
    expected = start + np.cumsum(values[:, order, 0], axis=1)
    np.testing.assert_array_equal(total, expected[:, -1:])
    np.testing.assert_array_equal(
        sums, expected[:, ::-1] if joined_last_first else expected
    )
    assert [builder.getTensorShape(name) for name in names] == [[2, 1], [2, 3]]


def test_a_scan_takes_vectors_of_one_element_out_of_a_vector() -> None:
    builder = popart.Builder()
    state = builder.addInputTensor("FLOAT", [1])
    rows = builder.addInputTensor("FLOAT", [4])
    names = scan(builder, state, rows)
    values = {state: np.ones(1, np.float32), rows: np.arange(4, dtype=np.float32)}

    total, sums = evaluate(builder, values, names)

    assert (total.tolist(), sums.tolist()) == ([7], [1, 2, 4, 7])


def test_graphs_within_graphs_read_what_is_around_them() -> None:
    """A loop of a loop with a branch, called in a graph that has a constant."""
    builder = popart.Builder()
    x, offset = (builder.addInputTensor(popart.TensorInfo(X)) for _ in range(2))
    weight = builder.addInitializedInputTensor(2 * EYE)
    true = constant(builder, True, bool)
    trips = [constant(builder, number, np.int64) for number in (3, 4, 2)]

    outer = builder.createSubgraphBuilder()
    inner = builder.createSubgraphBuilder()
    # Parameters of the inner loop: its number, the condition and the tensor.
    number = inner.addInputTensor(popart.TensorInfo("INT64", []))
    going, carried = inner.addUntypedInputTensor(true), inner.addUntypedInputTensor(x)
    taken, other = inner.createSubgraphBuilder(), inner.createSubgraphBuilder()
    taken.addOutputTensor(taken.aiOnnx.matmul([carried, weight]))
    other.addOutputTensor(other.aiOnnx.add([carried, offset]))
    early = inner.aiOnnx.less([number, trips[2]])
    (branch,) = inner.aiOnnx.logical_if([early], 1, other, taken)
    for name in (going, branch):
        inner.addOutputTensor(name)
    outer.addInputTensor(popart.TensorInfo("INT64", []))
    going, carried = outer.addUntypedInputTensor(true), outer.addUntypedInputTensor(x)
    (result,) = outer.aiOnnx.loop([trips[1], true, carried], 1, inner)
    for name in (going, result):
        outer.addOutputTensor(name)
    called = builder.createSubgraphBuilder()
    own = called.aiOnnx.constant(EYE)
    (looped,) = called.aiOnnx.loop([trips[0], true, x], 1, outer)
    called.addOutputTensor(called.aiOnnx.add([looped, own]))
    outputs = builder.aiGraphcore.call([], 1, called)

    (found,) = evaluate(builder, {x: X, offset: EYE}, outputs)

    expected = X
    for _ in range(3):
        expected = 4 * expected + 2 * EYE
    np.testing.assert_array_equal(found, expected + EYE)


@pytest.mark.parametrize("how", ["untyped", "typed", "parent"])
def test_a_graph_is_called_with_different_tensors(how: str) -> None:
    builder = popart.Builder()
    x, y, z = (builder.addInputTensor("FLOAT", [2, 2]) for _ in range(3))
    body = builder.createSubgraphBuilder()
    if how == "parent":
        body.addInputTensorFromParentGraph(x)
        body.addInputTensorFromParentGraph(y)
        names = [x, y]
    elif how == "typed":
        names = [body.addInputTensor("FLOAT", [2, 2]) for _ in range(2)]
    else:
        names = [body.addUntypedInputTensor() for _ in range(2)]
    body.addOutputTensor(body.aiOnnx.sub(names))
    (first,) = builder.aiGraphcore.call([x, y], 1, body)
    outputs = builder.aiGraphcore.call([first, z], 1, body, "again")

    (found,) = evaluate(builder, {x: X, y: EYE, z: 3 * EYE}, outputs)

    np.testing.assert_array_equal(found, X - 4 * EYE)


def trained(made: Any, conditions: Any, replicas: int = 1) -> dict[str, Any]:
    """Return the weights a and b after updates of which each multiplies x by one."""
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    condition = builder.addInputTensor("BOOL", [])
    weights = [
        builder.addInitializedInputTensor(np.ones(2, np.float32), name)
        for name in ("a", "b")
    ]
    branches = []
    for weight in weights:
        branch = builder.createSubgraphBuilder()
        branch.addOutputTensor(branch.aiOnnx.mul([x, weight]))
        branches.append(branch)
    then, other = branches
    (product,) = builder.aiOnnx.logical_if([condition], 1, other, then)
    loss = builder.aiGraphcore.identityloss([product], popart.ReductionType.Sum)
    count = len(conditions) // replicas
    optimizer = popart.SGD(
        {"defaultLearningRate": (0.1, True), "defaultMomentum": (0.5, True)}
    )
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(count, []), loss, optimizer),
        *(device(replicas),),
        userOptions=made,
    )
    session.prepareDevice()
    session.weightsFromHost()
    data = np.tile(np.array([1, 2], np.float32), (len(conditions), 1))
    data = {x: data, condition: np.array(conditions)}
    session.run(popart.PyStepIO(data, {}))
    return weights_of(session, "a", "b")


def test_weights_of_a_branch_that_is_not_taken_have_gradients_of_zero() -> None:
    """Momentum goes on moving them, and a first gradient in a later step is fine."""
    found = trained(options(), [True, False, False])

    slope = np.array([1, 2], np.float32)
    np.testing.assert_allclose(found["a"], 1 - 0.1 * slope * (1 + 0.5 + 0.25))
    np.testing.assert_allclose(found["b"], 1 - 0.1 * slope * (1 + 1.5), rtol=1e-6)


def test_replicas_of_instances_take_different_branches() -> None:
    def train(index: int) -> list[Any]:
        settings = options()
        popdist.popart.configureSessionOptions(settings)
        found = trained(settings, [index == 0])
        return [found["a"].tolist(), found["b"].tolist()]

    expected = (1 - 0.1 * np.array([1, 2], np.float32)).tolist()

    assert results((1, 1), train) == [[expected, expected]] * 2


def test_gradients_flow_through_loops_and_calls() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    w = builder.addInitializedInputTensor(np.array([2, 3], np.float32), "w")
    body = builder.createSubgraphBuilder()
    body.addUntypedInputTensor()
    going, value = body.addUntypedInputTensor(), body.addUntypedInputTensor()
    for name in (going, body.aiOnnx.mul([value, w])):
        body.addOutputTensor(name)
    trips, true = constant(builder, 3, np.int64), constant(builder, True, bool)
    powers = builder.aiOnnx.loop([trips, true, x], 1, body)
    called = builder.createSubgraphBuilder()
    operand = called.addUntypedInputTensor()
    called.addOutputTensor(called.aiOnnx.mul([operand, operand]))
    (square,) = builder.aiGraphcore.call(powers, 1, called)
    loss = builder.aiGraphcore.identityloss([square], popart.ReductionType.Sum)
    gradients = [popart.reservedGradientPrefix() + name for name in (x, w)]
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, gradients), loss),
        *(popart.ConstSGD(0.1), device()),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()

    session.run(popart.PyStepIO({x: np.array([1, 2], np.float32)}, anchors))

    # Of x * x * w ** 6.
    of_x, of_w = (anchors[name].tolist() for name in gradients)
    assert of_x == [2 * 2**6, 4 * 3**6]
    assert of_w == [6 * 2**5, 4 * 6 * 3**5]


def test_gradients_flow_through_a_scan() -> None:
    builder = popart.Builder()
    start = builder.addInitializedInputTensor(np.ones(1, np.float32), "start")
    w = builder.addInitializedInputTensor(np.full(1, 2, np.float32), "w")
    rows = builder.addInputTensor("FLOAT", [3])
    body = builder.createSubgraphBuilder()
    state, part = body.addUntypedInputTensor(), body.addUntypedInputTensor()
    product = body.aiOnnx.mul([state, w])
    body.addOutputTensor(body.aiOnnx.mul([product, part]))
    (end,) = builder.aiOnnx.scan([start, rows], 1, body, 1)
    loss = builder.aiGraphcore.identityloss([end], popart.ReductionType.Sum)
    gradients = [popart.reservedGradientPrefix() + name for name in (rows, w, start)]
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, gradients), loss),
        *(popart.ConstSGD(0.1), device()),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()

    session.run(popart.PyStepIO({rows: np.array([1, 2, 3], np.float32)}, anchors))

    # Of start * w ** 3 * the product of the rows.
    assert [anchors[name].tolist() for name in gradients] == [
        [48, 24, 16],
        [72],
        [48],
    ]


def graph(builder: popart.Builder, parameters: int, outputs: int) -> popart.Builder:
    """Return a builder of a graph that returns its last inputs."""
    body = builder.createSubgraphBuilder()
    names = [body.addUntypedInputTensor() for _ in range(parameters)]
    for name in names[parameters - outputs :] if outputs else []:
        body.addOutputTensor(name)
    return body


def returning(builder: popart.Builder, *names: str) -> popart.Builder:
    body = builder.createSubgraphBuilder()
    for name in names:
        body.addOutputTensor(name)
    return body


MISTAKES: dict[str, tuple[Any, str]] = {
    "too few outputs of a branch": (
        lambda b, x, c: b.aiOnnx.logical_if([c], 1, returning(b, x), returning(b)),
        r"^If has 1 outputs, but its then_branch has 0. Give both the same number\.$",
    ),
    "branches of different shapes": (
        lambda b, x, c: b.aiOnnx.logical_if([c], 1, returning(b, c), returning(b, x)),
        r"^The branches of If return \[FLOAT \[2\]\] and \[BOOL \[\]\]. Both must",
    ),
    "a condition that is a number": (
        lambda b, x, c: b.aiOnnx.logical_if([x], 1, returning(b, x), returning(b, x)),
        r"^The condition of If is FLOAT \[2\], but must be a scalar of the type BOOL",
    ),
    "a call with too few inputs": (
        lambda b, x, c: b.aiGraphcore.call([x], 1, graph(b, 2, 1)),
        r"^Call has 1 inputs, but its callee has 2. Give both the same number\.$",
    ),
    "a call with too many inputs": (
        lambda b, x, c: b.aiGraphcore.call([x, x], 1, graph(b, 1, 1)),
        r"^Call has 2 inputs, but its callee has 1. Give both the same number\.$",
    ),
    "a call with too many outputs": (
        lambda b, x, c: b.aiGraphcore.call([x], 2, graph(b, 1, 1)),
        r"^Call has 2 outputs, but its callee has 1. Give both the same number\.$",
    ),
    "a loop without a condition": (
        lambda b, x, c: b.aiOnnx.loop(["", c, x], 1, graph(b, 3, 1)),
        r"^Loop has 1 outputs, but its body has 1. A body has one more: the condition",
    ),
    "a loop that drops a tensor": (
        lambda b, x, c: b.aiOnnx.loop(["", c, x, x], 1, graph(b, 4, 2)),
        r"^Loop has 1 outputs, but carries 2 tensors. Give it an output for each",
    ),
    "a loop whose body changes a type": (
        lambda b, x, c: b.aiOnnx.loop(["", c, x], 1, returning_loop(b, c)),
        r"^The body of Loop carries on \[BOOL \[\], FLOAT \[2\]\], but returns "
        r"\[BOOL \[\], BOOL \[\]\]. Return the same types and shapes\.$",
    ),
    "a scan of a body with other inputs": (
        lambda b, x, c: b.aiOnnx.scan([x, x], 1, graph(b, 1, 1), 1),
        r"^Scan has 2 inputs, but its body has 1. Give both the same number\.$",
    ),
    "a scan of nothing": (
        lambda b, x, c: b.aiOnnx.scan([x], 1, graph(b, 1, 1), 0),
        r"^Scan has 1 inputs and 1 outputs, but num_scan_inputs is 0. Give it one",
    ),
    "a scan that drops a state": (
        lambda b, x, c: b.aiOnnx.scan([x, x], 0, graph(b, 2, 0), 1),
        r"^Scan has 2 inputs and 0 outputs, but num_scan_inputs is 1. Give it one",
    ),
    "a scan whose body changes a shape": (
        lambda b, x, c: b.aiOnnx.scan([x, x], 1, graph(b, 2, 1), 1),
        r"^The body of Scan carries on \[FLOAT \[2\]\], but returns \[FLOAT \[1\]\]",
    ),
    "a scan along an axis that is not there": (
        lambda b, x, c: b.aiOnnx.scan([x], 1, graph(b, 1, 1), 1, [1]),
        r"^Scan cannot use axis 1 of FLOAT \[2\]: it has none\.$",
    ),
    "a scan of different lengths": (
        lambda b, x, c: b.aiOnnx.scan(
            [x, b.aiOnnx.concat([x, x], 0)], 2, graph(b, 2, 2), 2
        ),
        r"^Scan takes a slice of each of \[FLOAT \[2\], FLOAT \[4\]\] in an iter",
    ),
    "a trip count of fractions": (
        lambda b, x, c: b.aiOnnx.loop([x, c, x], 1, graph(b, 3, 2)),
        r"^The trip count of Loop is FLOAT \[2\], but must be a scalar of the type IN",
    ),
    "stacks of an unknown size": (
        lambda b, x, c: b.aiOnnx.loop(["", c, x], 2, stacking(b)),
        r"^Loop stacks outputs of its iterations, whose number must be known",
    ),
    "an unknown tensor in a graph": (
        lambda b, x, c: returning(b, "nothing"),
        r"^'nothing' is not a tensor of this builder",
    ),
    "an unknown tensor of the parent": (
        lambda b, x, c: b.createSubgraphBuilder().addInputTensorFromParentGraph("z"),
        r"^Failed to add unrecognised Tensor z from higher scope",
    ),
    "a weight in a graph": (
        lambda b, x, c: b.createSubgraphBuilder().addInitializedInputTensor(X),
        r"^Weights belong to the outermost graph. Add this one there, and take it here",
    ),
    "an untyped input of the model": (
        lambda b, x, c: b.addUntypedInputTensor(),
        r"^Can not add untyped tensors to the top-level graph. Use addInputTensor",
    ),
    "a shape that depends on the use": (
        lambda b, x, c: graph(b, 1, 1).getTensorShape("input/2"),
        r"^The type and shape of input/2 depend on where this graph is used",
    ),
    "an operator within a graph that does not fit": (
        lambda b, x, c: b.aiGraphcore.call([x], 1, transposed(b)),
        r"^Transpose cannot be computed of",
    ),
    "running statistics within a graph": (
        lambda b, x, c: b.aiGraphcore.call([x], 1, normalized(b, x)),
        r"^BatchNormalization within a graph of a node updates no running statistics",
    ),
}


def returning_loop(builder: popart.Builder, name: str) -> popart.Builder:
    body = graph(builder, 3, 0)
    for _ in range(2):
        body.addOutputTensor(name)
    return body


def stacking(builder: popart.Builder) -> popart.Builder:
    body = builder.createSubgraphBuilder()
    _, condition, value = (body.addUntypedInputTensor() for _ in range(3))
    for name in (condition, value, value):
        body.addOutputTensor(name)
    return body


def transposed(builder: popart.Builder) -> popart.Builder:
    body = builder.createSubgraphBuilder()
    name = body.addUntypedInputTensor()
    body.addOutputTensor(body.aiOnnx.transpose([name], [1, 0]))
    return body


def normalized(builder: popart.Builder, x: str) -> popart.Builder:
    body = builder.createSubgraphBuilder()
    name = body.addUntypedInputTensor()
    outputs = body.aiOnnx.batchnormalization([name, x, x, x, x], 5)
    body.addOutputTensor(outputs[0])
    return body


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained(mistake: str) -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    condition = builder.addInputTensor("BOOL", [])
    make, message = MISTAKES[mistake]

    with pytest.raises(popart.popart_exception, match=message):
        make(builder, x, condition)


def test_a_graph_is_a_builder() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])

    with pytest.raises(TypeError, match=r"callee is 'x', but must be a builder that"):
        builder.aiGraphcore.call([x], 1, "x")
