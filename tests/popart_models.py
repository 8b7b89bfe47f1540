"""Small models of PopART, and what runs and trains them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import popart

# Threads of torch gain nothing here, and would wait for each other under load.
torch.set_num_threads(1)

ALL = popart.AnchorReturnType("All")

# Targets of two batches of 12 micro-batches, whose means are 0.5 and 0.6.
TARGETS = np.array([range(12), np.arange(12) + 1.1], np.float32) / np.float32(11)
RATE = 1 / 3


def device(ipus: int = 1) -> popart.DeviceInfo:
    return popart.DeviceManager().acquireAvailableDevice(ipus)


def options(replicas: int = 1, accumulation: int = 1, **more: Any) -> Any:
    made = popart.SessionOptions()
    made.enableReplicatedGraphs = replicas > 1
    made.replicatedGraphCount = replicas
    made.enableGradientAccumulation = accumulation > 1
    made.accumulationFactor = accumulation
    for name, value in more.items():
        setattr(made, name, value)
    return made


def evaluate(
    builder: popart.Builder, inputs: Mapping[str, Any], wanted: Sequence[str]
) -> list[Any]:
    """Return some tensors of a model for one micro-batch."""
    session = popart.InferenceSession(
        builder.getModelProto(), popart.DataFlow(1, wanted), device()
    )
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO(inputs, anchors))
    return [anchors[name] for name in wanted]


def weights_of(session: Any, *names: str) -> dict[str, Any]:
    """Return weights of the device."""
    session.weightsToHost()
    found = {
        name: np.empty(session.getInfo(name).shape(), np.float32) for name in names
    }
    session.readWeights(popart.PyWeightsIO(found))
    return found


def one_weight(made: Any, share: Any, optimizer: Any = None) -> float:
    """Return a weight that was trained by two updates towards some targets.

    The loss of a micro-batch is half of the square of the distance to its target.

    Args:
        made: The session options.
        share: The targets of this instance's replicas, in the order of PyStepIO.
        optimizer: None for the rate that all micro-batches of an update need together.
    """
    builder = popart.Builder()
    target = builder.addInputTensor("FLOAT", [1], "target")
    weight = builder.addInitializedInputTensor(np.zeros(1, np.float32), "weight")
    distance = builder.aiOnnx.sub([weight, target])
    square = builder.aiOnnx.mul([distance, distance])
    half = builder.aiGraphcore.scale([square], 0.5)
    loss = builder.aiGraphcore.identityloss([half], popart.ReductionType.Sum)
    session = popart.TrainingSession(
        fnModel=builder.getModelProto(),
        dataFlow=popart.DataFlow(2, [loss]),
        loss=loss,
        optimizer=optimizer or popart.ConstSGD(RATE),
        deviceInfo=device(made.replicatedGraphCount),
        userOptions=made,
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({target: np.ascontiguousarray(share)}, anchors))
    return float(weights_of(session, "weight")["weight"][0])


def share_of(replicas: int, first: int, local: int) -> Any:
    """Return the targets of some of all replicas, as PyStepIO takes them."""
    parts = TARGETS.reshape(2, 12 // replicas, replicas)
    return parts[:, :, first : first + local]
