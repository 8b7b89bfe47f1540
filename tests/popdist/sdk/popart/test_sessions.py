"""Options, anchors, inputs and devices of sessions."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from popart_models import ALL, device, evaluate, options

import popart


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("enablePiplining", True, "no option enablePiplining. Did you mean enablePipe"),
        ("nothing", 1, "SessionOptions has no option nothing."),
        ("accumulationFactor", "4", "accumulationFactor is '4', but must be int."),
        ("virtualGraphMode", 1, "is 1, but must be VirtualGraphMode."),
    ],
)
def test_options_are_checked_by_name_and_type(
    name: str, value: Any, error: str
) -> None:
    with pytest.raises((AttributeError, TypeError), match=error):
        setattr(popart.SessionOptions(), name, value)


def test_options_hold_structures_of_their_own() -> None:
    first, second = popart.SessionOptions(), popart.SessionOptions()
    location = first.optimizerStateTensorLocationSettings.location
    location.storage = popart.TensorStorage.OffChip
    first.engineOptions["target.syncReplicasIndependently"] = "true"
    first.weightTensorLocationSettings = popart.TensorLocationSettings(
        popart.TensorStorage.OffChip, 0
    )

    other = second.optimizerStateTensorLocationSettings.location
    assert other.storage == popart.TensorStorage.OnChip
    assert second.engineOptions == {}
    weights = first.weightTensorLocationSettings
    assert weights.location == popart.TensorLocation(popart.TensorStorage.OffChip)
    with pytest.raises(AttributeError, match=r"nothing"):
        _ = first.nothing


def identity(
    flow: Callable[[str], popart.DataFlow], made: Any = None, ipus: int = 1
) -> tuple[Any, str, str]:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    y = builder.aiOnnx.identity([x])
    session = popart.InferenceSession(
        builder.getModelProto(), flow(y), device(ipus), userOptions=made
    )
    session.prepareDevice()
    return session, x, y


def one_batch(name: str) -> popart.DataFlow:
    return popart.DataFlow(1, [name])


DISTRIBUTED = {"enableDistributedReplicatedGraphs": True}
NO_REDUCTION = {
    "accumulationAndReplicationReductionType": popart.ReductionType.NoReduction
}


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (
            options(replicas=0, enableReplicatedGraphs=True),
            "Invalid replicatedGraphCount value: 0, must be greater or equal than 1",
        ),
        (
            options(accumulation=0),
            "Invalid accumulationFactor value: 0, must be greate",
        ),
        (
            options(accumulation=4, enableGradientAccumulation=False),
            "enableGradientAccumulation is false, but accumulationFactor > 1. Either",
        ),
        (options(accumulation=4), "an InferenceSession accumulates no gradients. Set"),
        (options(**NO_REDUCTION), "is NoReduction, but gradients have to be reduced."),
        (
            options(**DISTRIBUTED, globalReplicationFactor=0),
            "Invalid globalReplicationFactor value: 0, must be greater or equal than 1",
        ),
        (
            options(**DISTRIBUTED, globalReplicaOffset=-1),
            "Invalid globalReplicaOffset value: -1, must be greater or equal than 0",
        ),
        (
            options(**DISTRIBUTED, globalReplicaOffset=3, globalReplicationFactor=2),
            "Global replica offset: 3, is larger than global replication factor: 2",
        ),
        (
            options(
                **DISTRIBUTED, globalReplicationFactor=4, enableReplicatedGraphs=True
            ),
            "Local replicated graphs enabled but replication factor is 1",
        ),
        (
            options(4, **DISTRIBUTED, globalReplicationFactor=2),
            "Invalid local replication factor: 4, larger than global replication fact",
        ),
        (options(2), "the device has 1 for 2 replicas. Acquire a device with a multip"),
        (options(hostWeightUpdate=True), "SessionOptions.hostWeightUpdate is True, wh"),
        (options(customCodelets=["a.cpp"]), r"SessionOptions.customCodelets is \['a.c"),
    ],
)
def test_options_that_cannot_be_run_are_refused(made: Any, error: str) -> None:
    with pytest.raises(popart.popart_exception, match=error):
        identity(one_batch, made)


BATCHES = np.arange(12, dtype=np.float32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ALL, BATCHES.reshape(6, 2).tolist()),
        (popart.AnchorReturnType("everyN", 3), [[4, 5], [10, 11]]),
        (popart.AnchorReturnType("FINAL"), [10, 11]),
        (popart.AnchorReturnType("sum"), [30, 36]),
    ],
)
def test_an_anchor_holds_what_its_type_says(kind: Any, expected: Any) -> None:
    session, x, y = identity(lambda name: popart.DataFlow(6, {name: kind}))
    anchors = session.initAnchorArrays()

    session.run(popart.PyStepIO({x: BATCHES}, anchors))

    assert anchors[y].tolist() == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ALL, BATCHES.reshape(3, 2, 2).tolist()),
        (popart.AnchorReturnType("EveryN", 3), [[8, 9], [10, 11]]),
        (popart.AnchorReturnType("Final"), [[8, 9], [10, 11]]),
        (popart.AnchorReturnType("Sum"), [[12, 15], [18, 21]]),
    ],
)
def test_anchors_of_replicas_stand_beside_each_other(kind: Any, expected: Any) -> None:
    session, x, y = identity(
        lambda name: popart.DataFlow(3, {name: kind}), options(2), 2
    )
    anchors = session.initAnchorArrays()

    session.run(popart.PyStepIO({x: BATCHES}, anchors))

    assert anchors[y].tolist() == expected


def accumulated(kind: popart.AnchorReturnType) -> Any:
    """Return an anchor of 2 batches of 2 steps of gradient accumulation."""
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [1])
    w = builder.addInitializedInputTensor(np.zeros(1, np.float32))
    y = builder.aiOnnx.add([x, w])
    loss = builder.aiGraphcore.l1loss([y], 0.0)
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(2, {y: kind}), loss),
        *(popart.ConstSGD(0.1), device()),
        userOptions=options(1, 2),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({x: np.array([1, 2, 3, 4], np.float32)}, anchors))
    return anchors[y].tolist()


def test_anchors_have_a_dimension_for_the_gradient_accumulation() -> None:
    assert accumulated(ALL) == [[[1], [2]], [[3], [4]]]
    assert accumulated(popart.AnchorReturnType("EveryN", 2)) == [[2], [4]]
    assert accumulated(popart.AnchorReturnType("Final")) == [4]
    assert accumulated(popart.AnchorReturnType("Sum")) == [10]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("INVALID",), "^Invalid anchor return type ID supplied: INVALID$"),
        (
            ("ALL", 2),
            "^A return period should not be supplied for this anchor return type$",
        ),
        (("EveryN", -1), "^Anchor return period must be greater than zero$"),
        (("EveryN",), "^Must specify return period with option 'EVERYN'$"),
    ],
)
def test_a_return_type_that_is_not_valid_is_refused_in_the_words_of_popart(
    arguments: tuple[Any, ...], error: str
) -> None:
    with pytest.raises(popart.popart_exception, match=error):
        popart.AnchorReturnType(*arguments)


def test_a_period_divides_the_batches() -> None:
    with pytest.raises(popart.popart_exception, match=r"x is 2, which does not divide"):
        popart.DataFlow(3, {"x": popart.AnchorReturnType("EveryN", 2)})


def test_a_data_flow_says_what_it_is() -> None:
    final = popart.AnchorReturnType("Final")
    flow = popart.DataFlow(3, ["x"], final)

    assert (flow.batchesPerStep(), flow.nAnchors(), flow.anchors()) == (3, 1, ["x"])
    assert (flow.isAnchored("x"), flow.isAnchored("y")) == (True, False)
    assert flow.art("x") is final
    assert popart.DataFlow(1, ["x"]).art("x").id() == popart.AnchorReturnTypeId.All
    with pytest.raises(
        popart.popart_exception, match=r"y is not an anchor of this Data"
    ):
        flow.art("y")


def test_an_anchor_is_a_tensor_of_the_model() -> None:
    with pytest.raises(
        popart.popart_exception, match=r"Anchor tensor `nothing' does no"
    ):
        identity(lambda name: popart.DataFlow(1, ["nothing"]))
    with pytest.raises(
        popart.popart_exception, match=r"an InferenceSession has no grad"
    ):
        identity(lambda name: popart.DataFlow(1, [f"Gradient___{name}"]))


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (np.zeros(3, np.float32), r"for tensor input. Expected 2 \(1 micro-batches of"),
        (
            np.zeros(2, np.float64),
            "User provided : DOUBLE and expected : FLOAT. Conver",
        ),
        (np.zeros((2, 2), np.float32)[:, 0], "as it is not c-contiguous"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(array: Any, error: str) -> None:
    session, x, _ = identity(one_batch)

    with pytest.raises(popart.popart_exception, match=error):
        session.run(popart.PyStepIO({x: array}, session.initAnchorArrays()))


def test_inputs_and_anchors_that_are_missing_are_named() -> None:
    session, x, y = identity(one_batch)
    array = np.zeros(2, np.float32)

    with pytest.raises(popart.popart_exception, match=r"The input input has no array."):
        session.run(popart.PyStepIO({}, session.initAnchorArrays()))
    with pytest.raises(popart.popart_exception, match=f"The anchor {y} has no array."):
        session.run(popart.PyStepIO({x: array}, {}))
    with pytest.raises(
        popart.popart_exception, match=r"has 1 elements, which is too few"
    ):
        session.run(popart.PyStepIO({x: array}, {y: np.zeros(1, np.float32)}))


def test_integers_of_64_bits_are_narrowed() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("INT32", [2])
    y = builder.aiOnnx.neg([x])

    (found,) = evaluate(builder, {x: np.array([1, 2], np.int64)}, [y])

    assert found.tolist() == [-1, -2]
    assert found.dtype == np.int32


def test_callbacks_are_called_for_each_micro_batch_in_order() -> None:
    session, x, y = identity(lambda n: popart.DataFlow(2, {n: ALL}), options(2), 2)
    calls: list[str] = []
    given = iter(BATCHES[:8].reshape(4, 2))
    taken = [np.zeros(2, np.float32) for _ in range(4)]
    free = iter(taken)

    def take_input(name: str, prefetch: bool) -> Any:
        calls.append(f"in {name}")
        return next(given)

    def take_output(name: str) -> Any:
        calls.append(f"out {name}")
        return next(free)

    io = popart.PyStepIOCallback(
        take_input, lambda name: None, take_output, lambda name: None
    )
    session.run(io)

    assert calls == [f"in {x}", f"in {x}", f"out {y}", f"out {y}"] * 2
    assert np.concatenate(taken).tolist() == list(range(8))


def test_synthetic_inputs_take_the_place_of_the_programs() -> None:
    zeros = options(syntheticDataMode=popart.SyntheticDataMode.Zeros)
    normal = options(syntheticDataMode=popart.SyntheticDataMode.RandomNormal)
    found = []
    for made in (zeros, normal, normal):
        session, x, y = identity(one_batch, made)
        anchors = session.initAnchorArrays()
        session.run(popart.PyStepIO({x: np.ones(2, np.float32)}, anchors))
        found.append(anchors[y].tolist())
        # They do not depend on the numbers that the program has drawn.
        torch.rand(1)

    assert found[0] == [0, 0]
    assert found[1] == found[2] != [1, 1]


def constant_session(constant: bool) -> Any:
    builder = popart.Builder()
    w = builder.addInitializedInputTensor(np.ones(2, np.float32), "w")
    y = builder.aiOnnx.neg([w])
    session = popart.InferenceSession(
        *(builder.getModelProto(), popart.DataFlow(1, [y]), device()),
        userOptions=options(constantWeights=constant),
    )
    session.prepareDevice()
    return session


def test_weights_of_an_inference_session_are_constant_unless_the_options_say_so() -> (
    None
):
    new = popart.PyWeightsIO({"w": np.zeros(2, np.float32)})

    with pytest.raises(
        popart.popart_exception, match=r"Cannot call writeWeights when constantWeights"
    ):
        constant_session(True).writeWeights(new)

    session = constant_session(False)
    session.writeWeights(new)
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({}, anchors))
    assert anchors["Neg:0"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ({"v": np.zeros(2, np.float32)}, "no weight v on the host. Its weights are w."),
        (
            {"w": np.zeros(3, np.float32)},
            r"is FLOAT \[3\], but the weight is FLOAT \[2",
        ),
        ({"w": np.zeros(2, np.float16)}, r"is FLOAT16 \[2\], but the weight is FLOAT "),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: Any, error: str) -> None:
    with pytest.raises(popart.popart_exception, match=error):
        constant_session(False).writeWeights(popart.PyWeightsIO(weights))


def test_an_array_for_a_weight_has_its_size() -> None:
    with pytest.raises(popart.popart_exception, match=r"has 3 elements, but the weig"):
        constant_session(True).readWeights(
            popart.PyWeightsIO({"w": np.zeros(3, np.float32)})
        )


@pytest.mark.parametrize(
    ("raw", "stored"),
    [
        # The bits of 1 and -2, and of 0.5.
        (False, ([0x3C00 - (0x4000 << 16), 0x3800], b"")),
        (True, ([], b"\x00\x3c\x00\xc0\x00\x38")),
    ],
)
def test_weights_of_16_bits_are_stored_in_pairs_unless_the_model_has_bytes(
    raw: bool, stored: Any, tmp_path: Path
) -> None:
    """PopART's BERT reads the pairs; other libraries write bytes."""
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT16", [3], "x")
    weights = np.array([1, -2, 0.5], np.float16)
    builder.addInitializedInputTensor(weights, "w")
    builder.addOutputTensor(builder.aiOnnx.add([x, "w"]))
    model = onnx.load_model_from_string(builder.getModelProto())
    if raw:
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    session = popart.InferenceSession(
        model.SerializeToString(), popart.DataFlow(1, []), device()
    )
    session.prepareDevice()
    session.modelToHost(tmp_path / "model.onnx")
    found = np.empty(3, np.float16)
    session.readWeights(popart.PyWeightsIO({"w": found}))

    for proto in (model, onnx.load(tmp_path / "model.onnx")):
        weight = proto.graph.initializer[0]
        assert (list(weight.int32_data), weight.raw_data) == stored
    assert found.tolist() == [1, -2, 0.5]


def test_a_model_without_shapes_needs_an_input_shape_info() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    y = builder.aiOnnx.neg([x])
    model = onnx.load_model_from_string(builder.getModelProto())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    arguments = (model.SerializeToString(), popart.DataFlow(1, [y]), device())

    with pytest.raises(popart.popart_exception, match=r"Add them to an InputShapeInfo"):
        popart.InferenceSession(*arguments)
    shapes = popart.InputShapeInfo()
    shapes.add(x, popart.TensorInfo("FLOAT", [3]))
    session = popart.InferenceSession(*arguments, inputShapeInfo=shapes)

    assert session.getInfo(y).shape() == [3]
    assert (shapes.has(x), shapes.get(x).shape()) == (True, [3])


def test_models_of_other_versions_of_onnx_are_refused() -> None:
    builder = popart.Builder()
    builder.addInputTensor("FLOAT", [2])
    model = onnx.load_model_from_string(builder.getModelProto())
    model.opset_import[0].version = 17

    with pytest.raises(
        popart.popart_exception, match=r"knows those from 6 to 11. Expor"
    ):
        popart.InferenceSession(
            model.SerializeToString(), popart.DataFlow(1, []), device()
        )


def test_cycles_are_seconds_of_the_devices_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(perf_counter=iter([5.0, 7.5]).__next__)
    monkeypatch.setattr("popart.session.sessions.time", clock)
    made = options(instrumentWithHardwareCycleCounter=True)
    session, x, _ = identity(one_batch, made)

    with pytest.raises(
        popart.popart_runtime_error, match=r"Nothing has run yet\. Call"
    ):
        session.getCycleCount()
    inputs = {x: np.zeros(2, np.float32)}
    session.run(popart.PyStepIO(inputs, session.initAnchorArrays()))

    assert device().tileClockFrequency == 1.33e9
    assert session.getCycleCount() == 3_325_000_000
    with pytest.raises(popart.popart_runtime_error, match="no cycle counter 'inner'"):
        session.getCycleCount("inner")
    uncounted, _, _ = identity(one_batch)
    with pytest.raises(popart.popart_runtime_error, match="CycleCounter is False, so"):
        uncounted.getCycleCount()


def test_what_no_session_here_can_do_is_refused() -> None:
    session, _, _ = identity(one_batch)

    with pytest.raises(
        AttributeError, match=r"InferenceSession.compileAndExport. docs/popart.md lists"
    ):
        session.compileAndExport("file")
    assert session.getSummaryReport() == "Execution profiling not enabled"


def test_devices_are_given_out_as_asked_for() -> None:
    manager = popart.DeviceManager()
    with manager.acquireAvailableDevice(4) as four:
        assert (four.numIpus, four.isAttached, four.tilesPerIPU) == (4, True, 1472)
    assert not four.isAttached
    demand = popart.DeviceConnectionType.OnDemand
    later = manager.acquireDeviceById(6, connectionType=demand)
    model = manager.createIpuModelDevice(
        {"numIPUs": 2, "tilesPerIPU": 1216, "ipuVersion": "ipu1"}
    )

    assert (later.id, later.isAttached, later.attach()) == (6, False, True)
    assert (later.numIpus, later.version) == (1, "ipu2")
    assert (model.type, model.numIpus, model.tilesPerIpu, model.version) == (
        popart.DeviceType.IpuModel,
        2,
        1216,
        "ipu1",
    )
    assert repr(manager.createCpuDevice()) == "DeviceInfo(Cpu, id=0, numIpus=1)"
    assert [found.numIpus for found in manager.enumerateDevices(numIpus=2)] == [2]
    with pytest.raises(popart.popart_exception, match=r"1 or more IPUs, not 0"):
        manager.acquireAvailableDevice(0)


def test_a_device_to_compile_for_runs_nothing() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    offline = popart.DeviceManager().createOfflineIPUDevice({"numIPUs": 1})
    session = popart.InferenceSession(
        builder.getModelProto(), popart.DataFlow(1, [x]), offline
    )

    with pytest.raises(
        popart.popart_runtime_error, match=r"cannot attach to DeviceInfo\(OfflineIpu, "
    ):
        session.prepareDevice()
    session.prepareDevice(loadEngine=False)
    with pytest.raises(
        popart.popart_exception, match=r"Offline IPU device is not configured for execu"
    ):
        session.run(popart.PyStepIO({}, {}))


def test_an_engine_that_is_not_loaded_yet_is_loaded_by_the_first_step() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    y = builder.aiOnnx.identity([x])
    demand = popart.DeviceManager().acquireAvailableDevice(
        connectionType=popart.DeviceConnectionType.OnDemand
    )
    session = popart.InferenceSession(
        builder.getModelProto(), popart.DataFlow(1, [y]), demand
    )
    anchors = session.initAnchorArrays()
    io = popart.PyStepIO({x: np.ones(2, np.float32)}, anchors)

    for load in (session.loadEngineAndConnectStreams, lambda: session.run(io)):
        with pytest.raises(popart.popart_exception, match=r"no compiled engine. Call"):
            load()
    session.prepareDevice(loadEngine=False)
    assert not demand.isAttached
    session.run(io)

    assert demand.isAttached
    assert anchors[y].tolist() == [1, 1]


def test_without_compile_engine_there_is_no_engine() -> None:
    session, x, _ = identity(one_batch, options(compileEngine=False))
    io = popart.PyStepIO({x: np.ones(2, np.float32)}, session.initAnchorArrays())

    with pytest.raises(popart.popart_exception, match=r"no compiled engine. Call prep"):
        session.run(io)


def test_patterns_are_recorded() -> None:
    patterns = popart.Patterns(popart.PatternsLevel.Default)
    patterns.InPlace = False
    patterns.enablePattern("TiedGather", False).enableRuntimeAsserts(False)

    assert (patterns.InPlace, patterns.MatMulOp) == (False, True)
    assert not patterns.isPatternEnabled("TiedGather")
    assert not popart.Patterns(["OpToIdentity"]).InPlace
    with pytest.raises(AttributeError, match=r"Patterns has no attribute Inplace."):
        patterns.Inplace = True
    with pytest.raises(AttributeError, match=r"Patterns has no attribute Inplace."):
        _ = patterns.Inplace


def test_loggers_have_the_levels_of_popart(caplog: pytest.LogCaptureFixture) -> None:
    logger = popart.getLogger("session")
    logger.setLevel("ERR")
    logger.warn("not this")
    logger.error("this")
    logger.setLevel("OFF")
    logger.critical("nor this")

    assert [(r.name, r.message) for r in caplog.records] == [("popart.session", "this")]
    with pytest.raises(
        ValueError, match=r"'LOUD' is not a log level. Choose one of TRA"
    ):
        popart.getLogger().setLevel("LOUD")


def test_a_model_is_converted_to_half_precision() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 2], "x")
    builder.addInitializedInputTensor(np.array([[1, 2], [3, 4]], np.float32), "w")
    two = builder.aiOnnx.constant(np.array([2], np.float32))
    y = builder.aiOnnx.mul([builder.aiOnnx.matmul([x, "w"]), two])
    builder.addOutputTensor(y)
    transformer = popart.GraphTransformer(builder.getModelProto())

    transformer.convertFloatsToHalfs()

    session = popart.InferenceSession(
        transformer.getModelProto(), popart.DataFlow(1, [y]), device()
    )
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({x: np.eye(2, dtype=np.float16)}, anchors))
    assert session.getInfo("w").data_type() == "FLOAT16"
    assert anchors[y].dtype == np.float16
    assert anchors[y].tolist() == [[2, 4], [6, 8]]
    with pytest.raises(AttributeError, match=r"GraphTransformer\.removeUnused"):
        transformer.removeUnusedInputs()


def test_a_model_with_graphs_in_nodes_is_not_converted() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2])
    body = builder.createSubgraphBuilder()
    inner = body.addInputTensor("FLOAT", [2])
    body.addOutputTensor(body.aiOnnx.abs([inner]))
    builder.aiGraphcore.call([x], 1, body)
    transformer = popart.GraphTransformer(builder.getModelProto())

    with pytest.raises(
        popart.popart_exception, match=r"no graph within a node, and Call has one\."
    ):
        transformer.convertFloatsToHalfs()


def test_a_device_without_memory_raises_an_error_that_has_two_names() -> None:
    assert popart.session.OutOfMemoryException is popart.OutOfMemoryException


def test_versions() -> None:
    assert popart.versionString() == "3.4.0 (popdist's stand-in)"
    assert popart.versionNumber() == (3, 4, 0)


def test_names_that_popart_has_and_the_stand_in_has_not_are_refused() -> None:
    with pytest.raises(
        AttributeError, match=r"has no NllLoss. docs/popart.md lists what"
    ):
        popart.NllLoss  # noqa: B018


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NllLoss", ""),
        ("popxl", ": popxl is not emulated. Write the model with popart.Builder"),
    ],
)
def test_an_import_of_such_a_name_says_the_same(name: str, reason: str) -> None:
    text = (
        f"popdist's stand-in for popart has no {name}{reason}. docs/popart.md lists "
        "what it supports."
    )

    with pytest.raises(ImportError) as imported:
        exec(f"from popart import {name}")
    with pytest.raises(AttributeError) as asked:
        getattr(popart, name)

    assert str(imported.value) == str(asked.value) == text
    assert not hasattr(popart, name)


def test_all_names_can_be_imported_at_once() -> None:
    names: dict[str, object] = {}

    exec("from popart import *", names)

    assert names["Builder"] is popart.Builder


@pytest.mark.parametrize("name", ["adam", "adaptive", "clipping", "sgd", "values"])
def test_modules_of_the_optimizers_are_no_names_of_popart(name: str) -> None:
    assert not hasattr(popart, name)
