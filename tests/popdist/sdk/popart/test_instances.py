"""Instances that train one model: what ends all of them, and where they must agree."""

import os
import signal
from typing import Any

import numpy as np
import pytest
from popart_models import device, options

import popart
import popdist.popart
from tests.popdist.engine.members import error_of
from tests.popdist.sdk.torch_instances import results, start


def step_of(
    micro_batches: int = 1, weights: tuple[str, ...] = ("w",), size: int = 2
) -> Any:
    """Return what runs one update of this instance's session.

    Args:
        micro_batches: Of how many the session has data; an update needs one.
        weights: The names of the model's weights, which are added up.
        size: How many elements each weight has.
    """
    settings = options()
    popdist.popart.configureSessionOptions(settings)
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [size], "x")
    initial = np.ones(size, np.float32)
    for name in weights:
        x = builder.aiOnnx.mul([x, builder.addInitializedInputTensor(initial, name)])
    loss = builder.aiGraphcore.identityloss([x])
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, []), loss),
        *(popart.ConstSGD(0.1), device()),
        userOptions=settings,
    )
    session.prepareDevice()
    session.weightsFromHost()
    data = {"x": np.ones((micro_batches, size), np.float32)}
    return lambda: session.run(popart.PyStepIO(data, {}))


def test_an_instance_that_is_killed_ends_the_training_of_the_others() -> None:
    def train(index: int) -> tuple[str, str]:
        step = step_of()
        step()
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return error_of(step)

    ended = start((1, 1, 1), train)

    assert ended[1].code == -signal.SIGKILL
    for survivor in (ended[0], ended[2]):
        kind, text = survivor.value
        assert kind == "PeerLostError"
        assert "Instance 1 has ended" in text


def test_an_instance_with_fewer_steps_ends_the_training_of_the_others() -> None:
    def train(index: int) -> str:
        step = step_of()
        step()
        return "" if index else error_of(step)[1]

    text, _ = results((1, 1), train)

    assert text.startswith("Instance 1 has ended, or closed the group, while instance")


def test_an_instance_without_enough_data_is_told_so() -> None:
    def train(index: int) -> tuple[str, str]:
        return error_of(step_of(micro_batches=1 - index))

    ended = start((1, 1), train)

    assert ended[1].value == (
        "popart_exception",
        "Unexpected number of input elements for tensor x. Expected 2 (1 micro-batches "
        "of [2]), but received 0.",
    )
    # The other one has ended.
    assert ended[0].value[0] == "PeerLostError"


@pytest.mark.parametrize(
    ("difference", "weights"),
    [
        ({"size": 3}, "w FLOAT [3]"),
        ({"weights": ("w", "v")}, "w FLOAT [2], v FLOAT [2]"),
        ({"weights": ("v",)}, "v FLOAT [2]"),
        ({"weights": ()}, "none"),
    ],
)
def test_instances_whose_weights_differ_are_told_so(
    difference: Any, weights: str
) -> None:
    def train(index: int) -> tuple[str, str]:
        return error_of(lambda: step_of(**(difference if index == 2 else {})))

    errors = results((1, 1, 1), train)

    assert errors == [
        (
            "popart_exception",
            f"Instances [2] train other weights than instance 0. Those of this one are "
            f"{names}. Create the same model on all instances.",
        )
        for names in ("w FLOAT [2]", "w FLOAT [2]", weights)
    ]
