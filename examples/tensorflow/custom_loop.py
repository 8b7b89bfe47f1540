"""Train one weight in a loop of its own, on all replicas of the job.

poprun --num-instances 2 --num-replicas 4 python examples/tensorflow/custom_loop.py
"""

import tensorflow as tf

import popdist
from popdist.tensorflow import PopDistStrategy

STEPS = 50


def main() -> None:
    strategy = PopDistStrategy()
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        weight = tf.Variable(0.0)
        optimizer = tf.keras.optimizers.SGD(0.1)

    # Each replica gets the next batch: the numbers x for which it has to learn 3 x.
    data = tf.data.Dataset.random(seed=popdist.getInstanceIndex()).map(
        lambda number: tf.cast(number % 100, tf.float32) / 100
    )
    batches = iter(strategy.experimental_distribute_dataset(data.batch(8).take(10_000)))

    def replica_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight * x - 3 * x) ** 2)
        # Optimizers add up the gradients of all replicas.
        gradient = tape.gradient(loss, weight) / replicas
        optimizer.apply_gradients([(gradient, weight)])
        return loss

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(x,))
        return strategy.reduce("MEAN", losses, axis=None)

    for number in range(STEPS):
        loss = step(next(batches))
        if number % 10 == 9 and popdist.getInstanceIndex() == 0:
            print(f"step {number + 1}: loss {loss:.5f}, weight {weight.numpy():.4f}")


if __name__ == "__main__":
    main()
