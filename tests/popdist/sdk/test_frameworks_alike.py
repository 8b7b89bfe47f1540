"""All frameworks train the same weights, in every layout of replicas and accumulation.

An update takes the same samples in all of them, divided among the micro-batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

import popdist
import popdist.sdk
from tests.popdist.tensorflow.instances import on_all

popdist.sdk.install()

from tensorflow.python import ipu  # noqa: E402

import horovod.torch as hvd  # noqa: E402
import popart  # noqa: E402
import popdist.popart  # noqa: E402
import popdist.poptorch  # noqa: E402
import poptorch  # noqa: E402

# Instances are forks: threads of torch would not be in them.
torch.set_num_threads(1)

UPDATES, ROWS = 2, 8
RANDOM = np.random.default_rng(7)


def random(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


@dataclass(frozen=True)
class Problem:
    """A network that is trained to make a number of each sample."""

    # Matrices and biases, in the order in which they are used, with relu between.
    weights: dict[str, Any]
    x: Any
    targets: Any
    rate: float
    momentum: float

    def share(self) -> tuple[Any, Any]:
        """Return the samples of this instance, those of each update in one piece."""
        count, index = popdist.getNumInstances(), popdist.getInstanceIndex()
        x, targets = (
            np.ascontiguousarray(
                all_rows.reshape(UPDATES, count, ROWS // count, -1)[:, index]
            )
            for all_rows in (self.x, self.targets)
        )
        size = UPDATES * ROWS // count
        return x.reshape(size, -1), targets.reshape(size, -1)


NETWORK = Problem(
    weights={
        "w1": random(3, 4),
        "b1": random(4),
        "w2": random(4, 1),
        "b2": random(1),
    },
    x=random(UPDATES * ROWS, 3),
    targets=random(UPDATES * ROWS, 1),
    rate=0.2,
    momentum=0.9,
)
# The means of its targets are 0.5 and 0.6.
ONE_WEIGHT = Problem(
    weights={"w1": np.zeros((1, 1), np.float32)},
    x=np.ones((UPDATES * ROWS, 1), np.float32),
    targets=np.concatenate([np.arange(8) / 7, np.arange(8) / 7 + 0.1]).astype(
        np.float32
    )[:, None],
    rate=1 / 3,
    momentum=0.0,
)


class Network(torch.nn.Module):
    def __init__(self, problem: Problem) -> None:
        super().__init__()
        for name, value in problem.weights.items():
            setattr(self, name, torch.nn.Parameter(torch.tensor(value)))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> Any:
        x = x @ self.w1
        if hasattr(self, "w2"):
            x = torch.relu(x + self.b1) @ self.w2 + self.b2
        loss = ((x - targets) ** 2).mean() / 2
        return poptorch.identity_loss(loss, reduction="none")

    def weights(self) -> dict[str, Any]:
        return {name: value.detach().numpy() for name, value in self.named_parameters()}

    def sgd(self, problem: Problem) -> torch.optim.Optimizer:
        rate, momentum = problem.rate, problem.momentum
        return torch.optim.SGD(self.parameters(), lr=rate, momentum=momentum)


def by_torch(problem: Problem) -> dict[str, Any]:
    """Return the weights after the same updates in one process without replicas."""
    network = Network(problem)
    optimizer = network.sgd(problem)
    x, targets = (
        torch.from_numpy(rows).split(ROWS) for rows in (problem.x, problem.targets)
    )
    for batch in zip(x, targets, strict=True):
        optimizer.zero_grad()
        network(*batch).backward()
        optimizer.step()
    return network.weights()


def by_poptorch(problem: Problem, accumulation: int) -> dict[str, Any]:
    options = popdist.poptorch.Options()
    options.showCompilationProgressBar(False)
    options.deviceIterations(UPDATES).Training.gradientAccumulation(accumulation)
    network = Network(problem)
    model = poptorch.trainingModel(network, options, network.sgd(problem))
    model(*(torch.from_numpy(rows) for rows in problem.share()))
    return network.weights()


def by_horovod(problem: Problem, accumulation: int) -> dict[str, Any]:
    """Return the weights of ranks, which are instances; they have no local replicas."""
    hvd.init()
    network = Network(problem)
    optimizer = hvd.DistributedOptimizer(
        network.sgd(problem),
        named_parameters=network.named_parameters(),
        backward_passes_per_step=accumulation,
    )
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    size = ROWS // hvd.size() // accumulation
    shares = [torch.from_numpy(rows).split(size) for rows in problem.share()]
    for number, micro_batch in enumerate(zip(*shares, strict=True)):
        (network(*micro_batch) / accumulation).backward()
        if (number + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    return network.weights()


def by_popart(problem: Problem, accumulation: int) -> dict[str, Any]:
    options = popart.SessionOptions()
    options.enableGradientAccumulation = accumulation > 1
    options.accumulationFactor = accumulation
    options.accumulationAndReplicationReductionType = popart.ReductionType.Mean
    popdist.popart.configureSessionOptions(options)
    rows = ROWS // popdist.getNumTotalReplicas() // accumulation
    builder = popart.Builder()
    x, target = (
        builder.addInputTensor("FLOAT", [rows, all_rows.shape[1]])
        for all_rows in (problem.x, problem.targets)
    )
    for name, value in problem.weights.items():
        builder.addInitializedInputTensor(value, name)
    operators = builder.aiOnnx
    y = operators.matmul([x, "w1"])
    if "w2" in problem.weights:
        hidden = operators.relu([operators.add([y, "b1"])])
        y = operators.add([operators.matmul([hidden, "w2"]), "b2"])
    distance = operators.sub([y, target])
    half = builder.aiGraphcore.scale([operators.mul([distance, distance])], 0.5)
    loss = builder.aiGraphcore.identityloss([half], popart.ReductionType.Mean)
    optimizer = popart.SGD(
        {
            "defaultLearningRate": (problem.rate, True),
            "defaultMomentum": (problem.momentum, True),
        }
    )
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(UPDATES, []), loss, optimizer),
        *(popdist.popart.getDevice(),),
        userOptions=options,
    )
    session.prepareDevice()
    session.weightsFromHost()
    data = dict(zip((x, target), problem.share(), strict=True))
    session.run(popart.PyStepIO(data, {}))
    session.weightsToHost()
    found = {name: np.empty_like(value) for name, value in problem.weights.items()}
    session.readWeights(popart.PyWeightsIO(found))
    return found


def by_tensorflow(problem: Problem, accumulation: int) -> dict[str, Any]:
    with ipu.distributed.popdist_strategy.PopDistStrategy().scope():
        matrices = [w for name, w in problem.weights.items() if name[0] == "w"]
        layers = [
            tf.keras.layers.Dense(
                matrix.shape[1],
                use_bias=len(matrices) > 1,
                activation="relu" if matrix is not matrices[-1] else None,
            )
            for matrix in matrices
        ]
        inputs = tf.keras.Input((problem.x.shape[1],))
        model = tf.keras.Sequential([inputs, *layers])
        model.set_weights(list(problem.weights.values()))
        model.compile(
            tf.keras.optimizers.SGD(problem.rate, momentum=problem.momentum),
            lambda target, y: (y - target) ** 2 / 2,
            steps_per_execution=accumulation,
        )
    model.set_gradient_accumulation_options(
        accumulation, gradient_accumulation_reduction_method="mean"
    )
    size = ROWS // popdist.getNumTotalReplicas() // accumulation
    model.fit(*problem.share(), batch_size=size, shuffle=False, verbose=0)
    return dict(zip(problem.weights, model.get_weights(), strict=True))


FRAMEWORKS: dict[str, Callable[[Problem, int], dict[str, Any]]] = {
    "Horovod": by_horovod,
    "PopART": by_popart,
    "PopTorch": by_poptorch,
    "TensorFlow": by_tensorflow,
}


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("rows", "accumulation"), [((1,), 2), ((1, 1), 1), ((2,), 1), ((2, 2), 2)], ids=str
)
def test_all_frameworks_train_the_same_weights(
    rows: tuple[int, ...], accumulation: int
) -> None:
    def program(_: int) -> list[dict[str, dict[str, Any]]]:
        return [
            {name: train(problem, accumulation) for name, train in FRAMEWORKS.items()}
            for problem in (NETWORK, ONE_WEIGHT)
        ]

    trained = on_all(rows, program)

    expected = by_torch(NETWORK)
    for of_network, of_one_weight in trained:
        for framework, found in of_network.items():
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert not np.allclose(value, NETWORK.weights[name], atol=1e-2)
                np.testing.assert_allclose(
                    *(found[name], value), rtol=2e-5, atol=2e-6, err_msg=framework
                )
        for framework, found in of_one_weight.items():
            weight = found["w1"].item()
            assert weight == pytest.approx(0.3111111, abs=1e-6), framework
