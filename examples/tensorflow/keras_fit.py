"""Train a Keras model on all replicas of the job.

The only line for popdist is the strategy: with tf.distribute.MirroredStrategy() in its
place, the program trains in one process.

    poprun --num-instances 2 --num-replicas 4 python examples/tensorflow/keras_fit.py
"""

import numpy as np
import tensorflow as tf

import popdist
from popdist.tensorflow import PopDistStrategy

CLASSES, PIXELS, SAMPLES = 10, 64, 4096
# For each replica.
BATCH = 16


def images() -> tuple[np.ndarray, np.ndarray]:
    """Return images of ten kinds of noise, and which kind each is of."""
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(CLASSES, PIXELS))
    labels = rng.integers(CLASSES, size=SAMPLES)
    noise = rng.normal(size=(SAMPLES, PIXELS))
    return (kinds[labels] + 2 * noise).astype(np.float32), labels


def main() -> None:
    strategy = PopDistStrategy()
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((PIXELS,)),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dropout(0.2, seed=1),
                tf.keras.layers.Dense(CLASSES),
            ]
        )
        model.compile(
            tf.keras.optimizers.Adam(0.01),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    data = tf.data.Dataset.from_tensor_slices(images())
    # Each instance has its own part of the data, in batches for one replica.
    data = data.shard(popdist.getNumInstances(), popdist.getInstanceIndex())
    data = data.batch(BATCH, drop_remainder=True)
    is_first = popdist.getInstanceIndex() == 0
    model.fit(data, epochs=3, verbose=2 if is_first else 0)
    _, accuracy = model.evaluate(data, verbose=0)
    if is_first:
        print(f"{strategy.num_replicas_in_sync} replicas, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
