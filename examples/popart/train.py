"""Train a small PopART model on all replicas of a job.

    poprun --num-instances 2 --num-replicas 4 python examples/popart/train.py

The data are drawn: points of ten clusters, whose centres the model has to learn.
"""

import argparse

import numpy as np

import popart
import popdist
import popdist.popart

FEATURES, HIDDEN, CLASSES = 32, 64, 10


def draw(samples, seed):
    """Return points and the numbers of their clusters."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, samples)
    points = centres[labels] + 1.5 * random.normal(size=(samples, FEATURES))
    return points.astype(np.float32), labels.astype(np.int32)


def build(batch_size):
    """Return a model, and the names of its inputs, its scores and its loss."""
    builder = popart.Builder()
    random = np.random.default_rng(1)
    points = builder.addInputTensor("FLOAT", [batch_size, FEATURES], "points")
    labels = builder.addInputTensor("INT32", [batch_size], "labels")
    x = points
    for inputs, outputs in ((FEATURES, HIDDEN), (HIDDEN, CLASSES)):
        weight = random.normal(size=(inputs, outputs)) / np.sqrt(inputs)
        w = builder.addInitializedInputTensor(weight.astype(np.float32), "weight")
        b = builder.addInitializedInputTensor(np.zeros(outputs, np.float32), "bias")
        x = builder.aiOnnx.gemm([x, w, b])
        if outputs == HIDDEN:
            x = builder.aiOnnx.relu([x])
    probabilities = builder.aiOnnx.softmax([x])
    loss = builder.aiGraphcore.nllloss([probabilities, labels])
    builder.addOutputTensor(probabilities)
    return builder, (points, labels), probabilities, loss


def session_options(accumulation):
    """Return options for the replicas that poprun has given to this instance."""
    options = popart.SessionOptions()
    options.enableGradientAccumulation = accumulation > 1
    options.accumulationFactor = accumulation
    options.accumulationAndReplicationReductionType = popart.ReductionType.Mean
    popdist.popart.configureSessionOptions(options)
    return options


def main(args):
    """Train, and print the loss and the accuracy of each epoch once for the job."""
    builder, inputs, probabilities, loss = build(args.batch_size)
    every = popart.AnchorReturnType("All")
    session = popart.TrainingSession(
        fnModel=builder.getModelProto(),
        dataFlow=popart.DataFlow(args.batches, {loss: every, probabilities: every}),
        loss=loss,
        optimizer=popart.SGD({"defaultLearningRate": (args.rate, False)}),
        deviceInfo=popdist.popart.getDevice(),
        userOptions=session_options(args.accumulation),
    )
    session.prepareDevice()
    session.broadcastWeights()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()

    replicas, first = popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()
    mine = slice(first, first + popdist.getNumLocalReplicas())
    steps = args.batches * args.accumulation
    for epoch in range(args.epochs):
        # All draw the same data, and each instance takes those of its replicas.
        data = draw(steps * replicas * args.batch_size, seed=2 + epoch)
        parts = [
            part.reshape(steps, replicas, args.batch_size, *part.shape[1:])[:, mine]
            for part in data
        ]
        arrays = map(np.ascontiguousarray, parts)
        session.run(popart.PyStepIO(dict(zip(inputs, arrays, strict=True)), anchors))
        if popdist.getInstanceIndex() == 0:
            guesses = anchors[probabilities].reshape(-1, CLASSES).argmax(1)
            accuracy = (guesses == parts[1].ravel()).mean()
            print(
                f"epoch {epoch + 1}: loss {anchors[loss].mean():.3f}, "
                f"accuracy {accuracy:.1%}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batches", type=int, default=20, help="updates in an epoch")
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="of a micro-batch")
    parser.add_argument("--rate", type=float, default=0.2)
    main(parser.parse_args())
