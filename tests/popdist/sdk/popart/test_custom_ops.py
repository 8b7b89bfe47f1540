from typing import Any

import numpy as np
import pytest
from popart_models import evaluate, options, weights_of

import popart
from popdist.sdk import register_custom_op


def cube(inputs: Any, attributes: Any) -> Any:
    return [inputs[0] ** 3 + attributes["bias"], inputs[0]]


def trained(custom: bool, replicas: int = 1) -> float:
    """Return a weight that was trained to the cube root of 10."""
    builder = popart.Builder()
    scale = builder.addInputTensor("FLOAT", [1], "scale")
    weight = builder.addInitializedInputTensor(np.full(1, 2, np.float32), "weight")
    x = builder.aiOnnx.mul([scale, weight])
    if custom:
        (y,) = builder.customOp("popart.Cube", 1, "com.acme", [x], {"bias": -10.0})
    else:
        ten = builder.aiOnnx.constant(np.full(1, 10, np.float32))
        cubed = builder.aiOnnx.mul([builder.aiOnnx.mul([x, x]), x])
        y = builder.aiOnnx.sub([cubed, ten])
    loss = builder.aiGraphcore.identityloss(
        [builder.aiOnnx.mul([y, y])], popart.ReductionType.Sum
    )
    session = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(3, [loss]),
        loss,
        popart.ConstSGD(1e-4),
        popart.DeviceManager().acquireAvailableDevice(replicas),
        userOptions=options(replicas),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    scales = np.linspace(0.9, 1.1, 3 * replicas, dtype=np.float32)
    session.run(popart.PyStepIO({scale: scales.reshape(-1, 1)}, anchors))
    return float(weights_of(session, "weight")["weight"][0])


@pytest.mark.parametrize("replicas", [1, 2])
def test_models_train_through_a_registered_function(replicas: int) -> None:
    register_custom_op("popart.Cube", cube)

    assert trained(True, replicas) == pytest.approx(trained(False, replicas), rel=1e-6)
    assert trained(True, replicas) != 2


def test_a_backward_function_takes_the_place_of_autograd() -> None:
    register_custom_op("popart.Cube", cube, lambda *_: [None])

    assert trained(True) == 2


def test_the_function_tells_types_and_shapes() -> None:
    register_custom_op(
        "popart.Halves", lambda inputs, _: [x[..., ::2].half() for x in inputs]
    )
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 6])

    halves = builder.customOp("popart.Halves", 1, "com.acme", [x, x], {}, numOutputs=2)

    assert [builder.getTensorShape(name) for name in halves] == [[2, 3]] * 2
    assert builder.getTensorDtypeString(halves[1]) == "float16"
    value = np.arange(12, dtype=np.float32).reshape(2, 6)
    found = evaluate(builder, {x: value}, [halves[1]])
    assert np.array_equal(found[0], value[:, ::2].astype(np.float16))


def test_functions_may_change_their_inputs() -> None:
    register_custom_op("popart.InPlace", lambda inputs, _: inputs[0].clone().add_(1))
    register_custom_op("popart.InPlaceOfAll", lambda inputs, _: inputs[0].add_(1))
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [3])

    for name in ("popart.InPlace", "popart.InPlaceOfAll"):
        (y,) = builder.customOp(name, 1, "com.acme", [x], {})
        assert builder.getTensorShape(y) == [3]


def test_the_operators_of_public_examples_are_there() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [3])

    (y,) = builder.customOp("LeakyRelu", 1, "custom.ops", [x], {"alpha": 0.5})

    found = evaluate(builder, {x: np.array([-4, 0, 3], np.float32)}, [y])
    assert found[0].tolist() == [-2, 0, 3]


def test_operators_without_a_function_say_how_to_register_one() -> None:
    register_custom_op("popart.Single", lambda inputs, _: inputs[0])
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [3])

    with pytest.raises(
        popart.popart_exception, match=r"register_custom_op\('popart.None', function"
    ):
        builder.customOp("popart.None", 1, "custom.ops", [x], {})
    with pytest.raises(
        popart.popart_exception, match="returned 1 outputs, but the node has 2"
    ):
        builder.customOp("popart.Single", 1, "custom.ops", [x], {}, numOutputs=2)


@pytest.mark.parametrize("domain", ["ai.onnx", "ai.onnx.ml", "ai.graphcore"])
def test_a_missing_operator_of_onnx_or_graphcore_is_not_available(domain: str) -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [3])

    with pytest.raises(popart.popart_exception) as caught:
        builder.customOp("Missing", 1, domain, [x], {})

    assert str(caught.value) == (
        f"{domain}'s Missing is not available in popdist's stand-in for popart. "
        "docs/popart.md lists the operators that are."
    )


def test_a_registered_function_may_be_in_graphcores_domain() -> None:
    register_custom_op("popart.Twice", lambda inputs, _: 2 * inputs[0])
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [3])

    (y,) = builder.customOp("popart.Twice", 1, "ai.graphcore", [x], {})

    found = evaluate(builder, {x: np.array([-4, 0, 3], np.float32)}, [y])
    assert found[0].tolist() == [-8, 0, 6]
