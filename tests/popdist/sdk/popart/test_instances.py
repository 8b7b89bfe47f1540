"""Instances that train one model: what ends all of them, and where they must agree."""

import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest
from popart_models import device, options, weights_of

import popart
import popdist.popart
from tests.popdist.engine.members import error_of
from tests.popdist.sdk.torch_instances import results, start


def model_of(weights: tuple[str, ...] = ("w",), size: int = 2) -> tuple[bytes, str]:
    """Return a model, and the name of its loss.

    Args:
        weights: The names of its weights, by which its input `x` is multiplied.
        size: How many elements each of these has.
    """
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [size], "x")
    initial = np.ones(size, np.float32)
    for name in weights:
        x = builder.aiOnnx.mul([x, builder.addInitializedInputTensor(initial, name)])
    loss = builder.aiGraphcore.identityloss([x])
    return builder.getModelProto(), loss


def step_of(micro_batches: int = 1, **model: Any) -> Any:
    """Return what runs one update of this instance's session.

    Args:
        micro_batches: Of how many the session has data; an update needs one.
        model: As in `model_of`.
    """
    session = session_of(**model)
    data = {"x": np.ones((micro_batches, model.get("size", 2)), np.float32)}
    return lambda: session.run(popart.PyStepIO(data, {}))


def session_of(batches: int = 1, **model: Any) -> popart.TrainingSession:
    """Return a session of that many batches in a step, ready to run."""
    settings = options()
    popdist.popart.configureSessionOptions(settings)
    proto, loss = model_of(**model)
    session = popart.TrainingSession(
        *(proto, popart.DataFlow(batches, []), loss, popart.ConstSGD(0.1), device()),
        userOptions=settings,
    )
    session.prepareDevice()
    session.weightsFromHost()
    return session


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


def test_an_instance_that_is_killed_within_a_step_ends_that_of_the_others() -> None:
    def train(index: int) -> tuple[str, str]:
        session = session_of(batches=3)
        batches = []

        def data(name: str, is_prefetched: bool) -> Any:
            batches.append(name)
            if (len(batches), index) == (2, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            return np.ones(2, np.float32)

        def ignore(name: str) -> Any:
            return None

        io = popart.PyStepIOCallback(data, ignore, ignore, ignore)
        return error_of(lambda: session.run(io))

    survivor, killed = start((1, 1), train)

    assert killed.code == -signal.SIGKILL
    assert survivor.value[0] == "PeerLostError"
    assert "Instance 1 has ended" in survivor.value[1]


@pytest.mark.parametrize("broadcast", [False, True])
def test_instances_that_train_other_weights_are_told_so_once(broadcast: bool) -> None:
    def train(index: int) -> tuple[list[str], list[float]]:
        session = session_of()
        loaded = {"w": np.array([1, 1 + index // 2], np.float32)}
        session.writeWeights(popart.PyWeightsIO(loaded))
        if broadcast:
            session.broadcastWeights()
        session.weightsFromHost()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                session.run(popart.PyStepIO({"x": np.ones((1, 2), np.float32)}, {}))
        return [str(one.message) for one in caught], weights_of(session, "w")["w"]

    (first, own), *others = results((1, 1, 1), train)

    text = (
        "Instances [2] train different weights from instance 0: all apply the same "
        "gradients, and their weights stay apart. Load the same weights on all "
        "instances, or call broadcastWeights() and then weightsFromHost() before the "
        "first run()."
    )
    assert first == ([] if broadcast else [text])
    assert [messages for messages, _ in others] == [[], []]
    assert np.array_equal(others[1][1], own) is broadcast


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


DIFFERENCES = pytest.mark.parametrize(
    ("difference", "weights"),
    [
        ({"size": 3}, "w FLOAT [3]"),
        ({"weights": ("w", "v")}, "w FLOAT [2], v FLOAT [2]"),
        ({"weights": ("v",)}, "v FLOAT [2]"),
        ({"weights": ()}, "none"),
    ],
)


@DIFFERENCES
def test_instances_whose_weights_differ_are_told_so(
    difference: Any, weights: str
) -> None:
    def train(index: int) -> tuple[str, str]:
        return error_of(lambda: step_of(**(difference if index == 2 else {})))

    assert results((1, 1, 1), train) == refusals(weights)


@DIFFERENCES
def test_instances_whose_weights_differ_broadcast_none(
    difference: Any, weights: str
) -> None:
    """Without training, too: weights of another name would take their values."""

    def broadcast(index: int) -> tuple[str, str]:
        proto, loss = model_of(**(difference if index == 2 else {}))
        session = popart.InferenceSession(proto, popart.DataFlow(1, [loss]), device())
        return error_of(session.broadcastWeights)

    assert results((1, 1, 1), broadcast) == refusals(weights)


def refusals(weights: str) -> list[tuple[str, str]]:
    """Return the errors of three instances of which the last has these weights."""
    return [
        (
            "popart_exception",
            "Instances [2] have different weights from instance 0. Those of this one "
            "are "
            f"{names}. Create the same model on all instances.",
        )
        for names in ("w FLOAT [2]", "w FLOAT [2]", weights)
    ]
