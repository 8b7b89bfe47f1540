"""The same network, trained by PopART's and PopTorch's stand-ins, and by TensorFlow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from popart_models import device, options, weights_of
from torch import nn

import popart
import popdist
import poptorch
from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import on_all

FEATURES, HIDDEN, CLASSES, ROWS = 6, 5, 3, 4
REPLICAS, ACCUMULATION, BATCHES = 2, 3, 4
SHAPES = {
    "w1": (FEATURES, HIDDEN),
    "b1": (HIDDEN,),
    "w2": (HIDDEN, CLASSES),
    "b2": (CLASSES,),
}
RANDOM = np.random.default_rng(5)
INITIAL = {n: RANDOM.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
SAMPLES = BATCHES * ACCUMULATION * REPLICAS * ROWS
X = RANDOM.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
LABELS = RANDOM.integers(0, CLASSES, SAMPLES).astype(np.int32)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, value in INITIAL.items():
            setattr(self, name, nn.Parameter(torch.tensor(value)))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        hidden = torch.relu(x @ self.w1 + self.b1)
        scores = hidden @ self.w2 + self.b2
        loss = nn.functional.cross_entropy(scores, labels.long())
        return poptorch.identity_loss(loss, reduction="none")


def by_poptorch(
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
) -> dict[str, Any]:
    settings = poptorch.Options()
    settings.showCompilationProgressBar(False)
    settings.replicationFactor(REPLICAS).deviceIterations(BATCHES)
    settings.Training.gradientAccumulation(ACCUMULATION)
    network = Network()
    model = poptorch.trainingModel(
        network, settings, make_optimizer(network.parameters())
    )
    model(torch.from_numpy(X), torch.from_numpy(LABELS))
    return {name: value.detach().numpy() for name, value in network.named_parameters()}


def by_popart(optimizer: popart.Optimizer) -> dict[str, Any]:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [ROWS, FEATURES])
    label = builder.addInputTensor("INT32", [ROWS])
    for name, value in INITIAL.items():
        builder.addInitializedInputTensor(value, name)
    hidden = builder.aiOnnx.relu([builder.aiOnnx.gemm([x, "w1", "b1"])])
    scores = builder.aiOnnx.gemm([hidden, "w2", "b2"])
    loss = builder.aiGraphcore.nllloss([builder.aiOnnx.softmax([scores]), label])
    made = options(REPLICAS, ACCUMULATION)
    made.accumulationAndReplicationReductionType = popart.ReductionType.Mean
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(BATCHES, []), loss),
        *(optimizer, device(REPLICAS)),
        userOptions=made,
    )
    session.prepareDevice()
    session.weightsFromHost()
    session.run(popart.PyStepIO({x: X, label: LABELS}, {}))
    return weights_of(session, *SHAPES)


def by_tensorflow(_: int) -> dict[str, Any]:
    strategy = PopDistStrategy()
    with strategy.scope():
        weights = {name: tf.Variable(value) for name, value in INITIAL.items()}
        optimizer = tf.keras.optimizers.SGD(0.2, momentum=0.9)

    def loss_of(x: Any, labels: Any) -> Any:
        hidden = tf.nn.relu(x @ weights["w1"] + weights["b1"])
        scores = hidden @ weights["w2"] + weights["b2"]
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        )

    @tf.function
    def step(x: Any, labels: Any) -> None:
        shares = zip(
            *(tf.split(each, ACCUMULATION) for each in (x, labels)), strict=True
        )
        with tf.GradientTape() as tape:
            losses = [loss_of(*share) for share in shares]
            loss = tf.add_n(losses) / (ACCUMULATION * REPLICAS)
        trained = [*weights.values()]
        gradients = tape.gradient(loss, trained)
        optimizer.apply_gradients(zip(gradients, trained, strict=True))

    # Each batch is that of one replica.
    batches = tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(ACCUMULATION * ROWS)
    own = batches.shard(popdist.getNumInstances(), popdist.getInstanceIndex())
    for batch in strategy.experimental_distribute_dataset(own):
        strategy.run(step, args=batch)
    return {name: weight.numpy() for name, weight in weights.items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rows", [(2,), (1, 1)], ids=str)
def test_all_frameworks_train_the_same_weights(rows: tuple[int, ...]) -> None:
    rate, momentum = (0.2, True), (0.9, True)
    ours = popart.SGD({"defaultLearningRate": rate, "defaultMomentum": momentum})

    trained = on_all(rows, by_tensorflow)
    expected = by_poptorch(
        lambda parameters: poptorch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    )

    for found in [by_popart(ours), *trained]:
        for name, value in expected.items():
            assert not np.allclose(value, INITIAL[name], atol=1e-2)
            np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(
            popart.SGD(
                {
                    "defaultLearningRate": (0.2, True),
                    "defaultMomentum": (0.9, True),
                    "defaultWeightDecay": (0.1, True),
                }
            ),
            lambda parameters: poptorch.optim.SGD(
                parameters, lr=0.2, momentum=0.9, weight_decay=0.1
            ),
            id="sgd",
        ),
        pytest.param(
            popart.Adam(
                {
                    "defaultLearningRate": (0.1, True),
                    "defaultWeightDecay": (0.1, True),
                    "defaultEps": (1e-4, True),
                    "lossScaling": (8.0, True),
                }
            ),
            lambda parameters: poptorch.optim.AdamW(
                parameters, lr=0.1, weight_decay=0.1, eps=1e-4
            ),
            id="adamw",
        ),
        pytest.param(
            popart.Adam(
                {"defaultLearningRate": (0.1, True), "defaultEps": (1e-4, True)},
                popart.AdamMode.LambNoBias,
            ),
            lambda parameters: poptorch.optim.LAMB(
                parameters, lr=0.1, eps=1e-4, bias_correction=False
            ),
            id="lamb",
        ),
    ],
)
def test_both_stand_ins_train_the_same_weights(
    ours: popart.Optimizer, theirs: Callable[[Any], torch.optim.Optimizer]
) -> None:
    expected, found = by_poptorch(theirs), by_popart(ours)

    for name, value in expected.items():
        assert not np.allclose(value, INITIAL[name], atol=1e-2)
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6)
