from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import popart


def inputs(builder: popart.Builder, *shapes: list[int]) -> list[str]:
    return [builder.addInputTensor(popart.TensorInfo("FLOAT", s)) for s in shapes]


def test_names_are_those_of_popart() -> None:
    builder = popart.Builder()
    x, y = inputs(builder, [2], [2])
    weight = builder.addInitializedInputTensor(np.ones(2, np.float32))
    named = builder.addInitializedInputTensor(np.ones(2, np.float32), "w")
    again = builder.addInitializedInputTensor(np.ones(2, np.float32), debugPrefix="w")
    first, second = (builder.aiOnnx.add([x, y]) for _ in range(2))
    with builder.nameScope("layer"), builder.nameScope("1"):
        scoped = builder.aiOnnx.add([x, y])
        inner = builder.getNameScope("w")

    assert [x, y, weight, named, again] == [
        "input",
        "input/1",
        "init_input",
        "w",
        "w/1",
    ]
    assert [first, second, scoped] == ["Add:0", "Add:0/1", "layer/1/Add:0"]
    assert inner == "layer/1/w"


@pytest.mark.parametrize(
    "arguments",
    [
        (popart.TensorInfo("FLOAT16", [2, 3]), "x"),
        (popart.TensorInfo(np.float16, (2, 3)), popart.InputSettings(), "x"),
        ("FLOAT16", [2, 3], "x"),
        ("FLOAT16", [2, 3], popart.DebugContext("x")),
        (popart.TensorInfo(np.zeros((2, 3), np.float16)), "x"),
    ],
)
def test_an_input_has_a_type_a_shape_and_a_name(arguments: tuple[Any, ...]) -> None:
    builder = popart.Builder()

    name = builder.addInputTensor(*arguments)

    assert name == "x"
    assert builder.getTensorShape(name) == [2, 3]
    assert builder.getTensorDtypeString(name) == "float16"


def test_a_model_knows_what_was_added() -> None:
    builder = popart.Builder()
    builder.setGraphName("net")
    (x,) = inputs(builder, [2, 3])
    w = builder.addInitializedInputTensor(np.ones((3, 4), np.float32), "w")
    y = builder.aiOnnx.matmul([x, w], "product")
    z = builder.aiGraphcore.gelu([y])
    builder.addOutputTensor(z)

    model = onnx.load_model_from_string(builder.getModelProto())

    assert model.graph.name == "net"
    assert [n.name for n in model.graph.node] == ["product", ""]
    assert {v.domain: v.version for v in model.opset_import} == {
        "": 10,
        "ai.graphcore": 1,
    }
    assert builder.getInputTensorIds() == [x, w]
    assert builder.getOutputTensorIds() == [z]
    assert builder.getValueTensorIds() == [y]
    assert builder.getTrainableTensorIds() == [w]
    assert (builder.isInitializer(w), builder.isInitializer(x)) == (True, False)


def test_a_builder_goes_on_with_a_model(tmp_path: Path) -> None:
    first = popart.Builder()
    (x,) = inputs(first, [2])
    y = first.aiOnnxOpset9.neg([x])
    first.saveModelProto(str(tmp_path / "model.onnx"))

    for source in (first.getModelProto(), str(tmp_path / "model.onnx")):
        builder = popart.Builder(source)
        z = builder.aiOnnx.neg([y])

        assert builder.getTensorShape(z) == [2]
        assert builder.aiOnnx.version == 9


def test_a_file_that_is_no_model_is_named() -> None:
    with pytest.raises(popart.popart_exception, match=r"from 'nothing.onnx': .* Give"):
        popart.Builder("nothing.onnx")


def test_the_version_that_is_used_first_is_that_of_the_model() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [4])

    assert builder.getTensorShape(builder.aiOnnxOpset11.clip([x])) == [4]
    assert builder.aiOnnx.version == 11
    with pytest.raises(
        RuntimeError,
        match=r"Invalid opset 'aiOnnxOpset9' selected. Opset for domain ai.onnx "
        "already defined as 11",
    ):
        builder.aiOnnxOpset9  # noqa: B018
    with pytest.raises(ValueError, match=r"unrecognized ai.Onnx version: 12"):
        builder.aiOnnxOpset12  # noqa: B018


def test_arguments_have_the_order_that_popart_gives_them() -> None:
    builder = popart.Builder()
    a, b, c, image = inputs(builder, [3, 2], [3, 4], [4], [1, 1, 6, 6])
    onnx_operators = builder.aiOnnx

    gemm = onnx_operators.gemm([a, b, c], 1.0, 1.0, True, False)
    (pooled,) = onnx_operators.maxpool([image], 1, [3, 3], 0, [1, 1], [1, 1, 1, 1])
    padded = onnx_operators.pad([c], [2, 3], "constant", 0.5)
    cast = onnx_operators.cast([c], "INT32")

    assert builder.getTensorShape(gemm) == [2, 4]
    assert builder.getTensorShape(pooled) == [1, 1, 6, 6]
    assert builder.getTensorShape(padded) == [9]
    assert builder.getTensorDtypeString(cast) == "int32"


def test_wrong_arguments_are_refused_in_the_words_of_popart() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2])
    add = builder.aiOnnx.add

    with pytest.raises(
        popart.popart_exception,
        match=r"^Add has invalid number of inputs 0. Must be between 2..2$",
    ):
        add([])
    with pytest.raises(popart.popart_exception, match=r"Must be between 1..inf$"):
        builder.aiOnnx.sum([])
    with pytest.raises(TypeError, match=r"^add\(\): incompatible function arguments"):
        add(0, 0)
    with pytest.raises(TypeError, match=r"^conv\(\): incompatible function arguments"):
        builder.aiOnnx.conv()
    with pytest.raises(TypeError, match=r"'scale'. It takes \(args, scale, debugCont"):
        builder.aiGraphcore.scale([x])
    with pytest.raises(
        popart.popart_exception, match=r"'y' is not a tensor of this bui"
    ):
        add([x, "y"])


def test_shapes_that_do_not_fit_are_refused() -> None:
    builder = popart.Builder()
    a, b = inputs(builder, [2, 3], [4, 5])

    with pytest.raises(popart.popart_exception, match=r"^MatMul cannot be computed of"):
        builder.aiOnnx.matmul([a, b])
    with pytest.raises(popart.popart_exception, match=r"^Atan2 cannot be computed of"):
        builder.aiGraphcore.atan2([a, b])
    assert builder.getValueTensorIds() == []


def test_types_that_an_operator_does_not_take_are_refused() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2])
    whole = builder.addInputTensor("INT32", [2])

    with pytest.raises(
        popart.popart_exception,
        match=r"^Gather cannot be computed of .*: indices must be integers\.$",
    ):
        builder.aiOnnx.gather([x, x])
    with pytest.raises(
        popart.popart_exception, match=r"^Add cannot be computed of .* inconsistent typ"
    ):
        builder.aiOnnx.add([x, whole])


def test_fractions_can_be_compared_in_all_versions() -> None:
    """ONNX compares only integers before version 11."""
    builder = popart.Builder(opsets={"ai.onnx": 7})
    (x,) = inputs(builder, [2])

    assert builder.getTensorDtypeString(builder.aiOnnx.equal([x, x])) == "bool"


def test_what_an_operator_reads_while_it_is_compiled_is_a_constant() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2, 3])
    shape = builder.addInputTensor("INT64", [1])

    with pytest.raises(
        popart.popart_exception,
        match=r"Reshape needs a constant as its input 1, but input/1 is known only "
        r"when the graph runs. Make it with constant\(\).",
    ):
        builder.aiOnnx.reshape([x, shape])


def test_constants_are_computed_from_constants_and_shapes() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2, 3, 4])
    rows = builder.aiOnnx.slice(
        [builder.aiOnnx.shape([x])]
        + [builder.aiOnnx.constant(np.array([n], np.int64)) for n in (0, 1)]
    )
    rest = builder.aiOnnx.constant(np.array([-1], np.int64))
    shape = builder.aiOnnx.concat([rows, rest], 0)

    assert builder.getTensorShape(builder.aiOnnx.reshape([x, shape])) == [2, 12]
    flat = builder.reshape_const(builder.aiOnnx, [x], [24])
    assert builder.getTensorShape(flat) == [24]


@pytest.mark.parametrize("name", ["nothing", "nonzero"])
def test_operators_that_are_not_available_are_refused_by_name(name: str) -> None:
    with pytest.raises(
        popart.popart_exception,
        match=f"^ai.onnx's {name}, version 10, is not available in popdist's stand-in "
        r"for popart. docs/popart.md lists the operators that are.$",
    ):
        getattr(popart.Builder().aiOnnx, name)
    assert not hasattr(popart.Builder().aiOnnx, name)


def test_methods_that_are_not_available_are_refused() -> None:
    with pytest.raises(
        AttributeError, match=r"no Builder.commGroups. docs/popart.md l"
    ):
        popart.Builder().commGroups  # noqa: B018


def test_operators_are_added_by_name() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2])

    (y,) = builder.customOp(
        opName="LeakyRelu",
        opVersion=6,
        domain="ai.onnx",
        inputs=[x],
        attributes={"alpha": 0.5},
        numOutputs=1,
    )

    assert builder.getTensorShape(y) == [2]


def test_nodes_carry_notes_on_ipus_and_stages() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2])
    with builder.virtualGraph(1), builder.pipelineStage(2), builder.executionPhase(3):
        noted = builder.aiOnnx.neg([x])
        inside = builder.getVirtualGraph(), builder.getPipelineStage()
    other = builder.aiOnnx.neg([x])
    builder.virtualGraph(other, 4)

    assert inside == (1, 2)
    assert builder.getInt64NodeAttribute("__pipeline_stage", noted) == 2
    assert builder.getInt64NodeAttribute("__execution_phase", {noted}) == 3
    assert builder.getVirtualGraph(noted) == 1
    assert builder.getVirtualGraph([other]) == 4
    assert (builder.hasVirtualGraph(), builder.hasPipelineStage()) == (False, False)


def test_a_block_of_notes_can_be_entered_again() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2])
    layer = builder.outlineAttributes({"layer": 1})
    names = []
    for stage in (0, 1):
        with builder.pipelineStage(stage), layer, layer:
            names.append(builder.aiOnnx.neg([x]))
    names.append(builder.aiOnnx.neg([x]))

    noted = [builder.getAllNodeAttributeNames(name) for name in names]

    assert noted == [["__outline_attribute", "__pipeline_stage"]] * 2 + [[]]


def test_notes_of_all_kinds_change_no_result() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2, 2])
    with (
        builder.schedulePriority(1.5),
        builder.outlineAttributes({"layer": 1}),
        builder.recomputeOutput(popart.RecomputeType.Checkpoint),
        builder.commGroup(1, 2),
        builder.outputTensorLocation(popart.TensorLocation()),
    ):
        y = builder.aiOnnx.matmul([x, x])
    builder.setAvailableMemoryProportion(y, 0.3)
    builder.setPartialsType({y}, "HALF")
    builder.setSerializeMatMul({y}, "input_channels", 2)
    builder.recomputeOutputInBackwardPass(y)
    builder.excludePatterns(y, ["InPlace"])
    builder.setInplacePreferences(y, {"MatMul": 1.0})
    off_chip = popart.TensorLocation(popart.TensorStorage.OffChip)
    off_chip.shardingDomain = popart.CommGroup(popart.CommGroupType.Consecutive, 4)
    builder.outputTensorLocation(y, off_chip)

    location = builder.getInt64VectorNodeAttribute("__output_tensor_location", y)
    assert location == [0, 0, 0, 0, 1, 4]
    assert builder.getPartialsType(y) == "HALF"
    assert builder.getRecomputeOutputInBackwardPass(y)
    assert builder.checkpointOutput(y) == [y]
    assert popart.Builder(builder.getModelProto()).getTensorShape(y) == [2, 2]


def test_attributes_can_be_added_read_and_removed() -> None:
    builder = popart.Builder()
    (x,) = inputs(builder, [2])
    y = builder.aiOnnx.neg([x])

    builder.addNodeAttribute("numbers", [1, 2], {y})
    builder.addNodeAttribute("text", "here", {y})

    assert builder.getInt64VectorNodeAttribute("numbers", {y}) == [1, 2]
    assert builder.getStringNodeAttribute("text", {y}) == "here"
    assert builder.getAllNodeAttributeNames({y}) == ["numbers", "text"]
    with pytest.raises(popart.popart_exception, match=r"already has attribute text"):
        builder.addNodeAttribute("text", "there", {y})
    builder.removeNodeAttribute("text", {y})
    assert not builder.nodeHasAttribute("text", {y})
    with pytest.raises(
        popart.popart_exception, match=r"Could not find a node with outp"
    ):
        builder.addNodeAttribute("text", "there", {x})


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("NUMBER", [1]), "'NUMBER' is not an element type. Choose one of FLOAT,"),
        ((np.complex64, [1]), "is not an element type"),
    ],
)
def test_a_type_that_popart_does_not_have_is_refused(
    arguments: tuple[Any, ...], error: str
) -> None:
    with pytest.raises(popart.popart_exception, match=error):
        popart.TensorInfo(*arguments)


def test_a_tensor_info_says_what_it_is() -> None:
    info = popart.TensorInfo("float16", [2, 3])

    assert (info.shape(), info.nelms(), info.rank()) == ([2, 3], 6, 2)
    assert (info.data_type(), info.data_type_lcase()) == ("FLOAT16", "float16")
    assert repr(info) == "FLOAT16 [2, 3]"
    assert (
        info == popart.TensorInfo(np.float16, (2, 3)) != popart.TensorInfo("INT8", [])
    )
    with pytest.raises(TypeError, match=r"Give a type and a shape, or a numpy array"):
        popart.TensorInfo()
